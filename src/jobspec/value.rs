//! Values of expressions.

use std::cmp::Ordering;
use std::fmt;

use crate::spec::Order as _;
use crate::spec::collections::BTreeMap;

/// A number; whole numbers are exact.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// Reads a decimal number with optional fraction and exponent.
    pub fn parse(text: &str) -> Option<Number> {
        if let Ok(int) = text.parse::<i128>() {
            return (!text.starts_with('+')).then_some(Number::Int(int));
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if mantissa.ends_with('.') {
            return None;
        }
        let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let exact = u32::try_from(shift).ok().filter(|s| *s < 39).and_then(|shift| {
            format!("{whole}{fraction}").parse::<i128>().ok()?.checked_mul(10i128.checked_pow(shift)?)
        });
        match exact {
            Some(int) => Some(Number::Int(int)),
            None => Number::from_f64(text.parse().ok()?),
        }
    }

    /// A finite float, as a whole number where it is one.
    #[expect(clippy::cast_possible_truncation, reason = "guarded by the range")]
    pub fn from_f64(float: f64) -> Option<Number> {
        const EXACT: f64 = 1e30;
        match float {
            f if !f.is_finite() => None,
            f if f.fract() == 0.0 && f.abs() < EXACT => Some(Number::Int(f as i128)),
            f => Some(Number::Float(f)),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a float is asked for")]
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(f) => f,
        }
    }

    pub fn to_int(self) -> Option<i128> {
        match self {
            Number::Int(i) => Some(i),
            Number::Float(_) => None,
        }
    }

    pub fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (a, b) => a.to_f64().total_cmp(&b.to_f64()),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(i) => i.fmt(f),
            Number::Float(x) => x.fmt(f),
        }
    }
}

/// What an expression evaluates to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    List(Vec<Value>),
    /// Sorted, without duplicates.
    Set(Vec<Value>),
    /// By key, in order.
    Object(BTreeMap<String, Value>),
}

impl Value {
    pub fn int(int: impl Into<i128>) -> Value {
        Value::Number(Number::Int(int.into()))
    }

    pub fn usize(n: usize) -> Value {
        Value::Number(Number::Int(i128::try_from(n).unwrap_or(i128::MAX)))
    }

    pub fn string(text: impl Into<String>) -> Value {
        Value::String(text.into())
    }

    pub fn set(mut items: Vec<Value>) -> Value {
        items.order_by(Value::compare);
        items.dedup();
        Value::Set(items)
    }

    /// The word for its type in messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Object(_) => "object",
        }
    }

    pub fn is_primitive(&self) -> bool {
        matches!(self, Value::Bool(_) | Value::Number(_) | Value::String(_))
    }

    /// The elements of a list or set.
    pub fn elements(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Set(items) => Some(items),
            _ => None,
        }
    }

    /// Keys (or indexes, or a set's elements) with values, in order; `None` for what is not a collection.
    pub fn entries(&self) -> Option<Vec<(Value, Value)>> {
        match self {
            Value::List(items) => Some(items.iter().enumerate().map(|(i, v)| (Value::usize(i), v.clone())).collect()),
            Value::Set(items) => Some(items.iter().map(|v| (v.clone(), v.clone())).collect()),
            Value::Object(map) => Some(map.iter().map(|(k, v)| (Value::string(k.as_str()), v.clone())).collect()),
            _ => None,
        }
    }

    /// As a string, where the language converts by itself.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Value::Bool(b) => Some(b.to_string()),
            Value::Number(n) => Some(n.to_string()),
            Value::String(s) => Some(s.clone()),
            _ => None,
        }
    }

    /// As a number, where the language converts by itself.
    pub fn to_number(&self) -> Option<Number> {
        match self {
            Value::Number(n) => Some(*n),
            Value::String(s) => Number::parse(s),
            _ => None,
        }
    }

    /// As a bool, where the language converts by itself.
    pub fn to_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            Value::String(s) if s == "true" => Some(true),
            Value::String(s) if s == "false" => Some(false),
            _ => None,
        }
    }

    /// A total order, so that sets have one.
    pub fn compare(&self, other: &Value) -> Ordering {
        let rank = |v: &Value| match v {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 2,
            Value::String(_) => 3,
            Value::List(_) => 4,
            Value::Set(_) => 5,
            Value::Object(_) => 6,
        };
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => a.compare(*b),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::List(a), Value::List(b)) | (Value::Set(a), Value::Set(b)) => compare_all(a.iter(), b.iter()),
            (Value::Object(a), Value::Object(b)) => {
                a.keys().cmp(b.keys()).then_with(|| compare_all(a.values(), b.values()))
            }
            (a, b) => rank(a).cmp(&rank(b)),
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match self {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::Bool(*b),
            Value::Number(Number::Int(i)) => match (i64::try_from(*i), u64::try_from(*i)) {
                (Ok(i), _) => Json::from(i),
                (_, Ok(u)) => Json::from(u),
                _ => Json::from(Number::Int(*i).to_f64()),
            },
            Value::Number(Number::Float(f)) => Json::from(*f),
            Value::String(s) => Json::String(s.clone()),
            Value::List(items) | Value::Set(items) => Json::Array(items.iter().map(Value::to_json).collect()),
            Value::Object(map) => Json::Object(map.iter().map(|(k, v)| (k.clone(), v.to_json())).collect()),
        }
    }
}

fn compare_all<'a>(a: impl Iterator<Item = &'a Value>, mut b: impl Iterator<Item = &'a Value>) -> Ordering {
    for left in a {
        match b.next().map(|right| left.compare(right)) {
            None => return Ordering::Greater,
            Some(Ordering::Equal) => {}
            Some(other) => return other,
        }
    }
    if b.next().is_some() { Ordering::Less } else { Ordering::Equal }
}

#[cfg(test)]
mod tests {
    use super::{Number, Value};

    #[test]
    fn whole_numbers_are_exact_however_they_are_written() {
        let text = |t: &str| Number::parse(t).map(|n| n.to_string());
        for (written, expected) in [
            ("0", "0"),
            ("-7", "-7"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("1e3", "1000"),
            ("1.5e1", "15"),
            ("2.50", "2.5"),
            ("1e30", "1000000000000000000000000000000"),
            ("9007199254740993", "9007199254740993"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(text(written).as_deref(), Some(expected), "{written}");
        }
        for wrong in ["", "-", "+1", "a", "0x10", "1_000", "inf", "NaN", ".5", "5.", "1e999", " 1"] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sets_are_sorted_and_without_duplicates() {
        let set = Value::set(vec![Value::string("b"), Value::int(10), Value::string("a"), Value::string("b")]);
        assert_eq!(set, Value::Set(vec![Value::int(10), Value::string("a"), Value::string("b")]));
    }
}
