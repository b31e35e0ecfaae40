//! Operators on values: indexing and arithmetic, for expressions and functions.

use super::ast::Operator;
use super::diag::did_you_mean;
use super::value::{Number, Value};
use crate::spec::shortened;

/// Bytes of a value that a message shows.
const LONGEST_SHOWN: usize = 200;

pub(super) fn described(value: &Value) -> String {
    match value {
        Value::String(s) if s.starts_with("${") => format!("the runtime reference \"{}\"", shortened(s, LONGEST_SHOWN)),
        Value::Null => "null".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => format!("a {}", other.type_name()),
    }
}

/// `collection[key]`, also the functions' rule for it. With `hints` the key that was meant is looked for.
pub(super) fn indexed<'v>(
    value: &'v Value,
    key: &Value,
    hints: &dyn Fn() -> bool,
) -> std::result::Result<&'v Value, String> {
    match value {
        Value::List(items) => {
            let index = key.to_number().and_then(Number::to_int).ok_or("the index of a list must be a whole number")?;
            let item = usize::try_from(index).ok().and_then(|i| items.get(i));
            item.ok_or_else(|| format!("index {index} is outside of the list of {}", items.len()))
        }
        Value::Object(map) => {
            let name = key.to_text().ok_or("the key of a map must be a string")?;
            map.get(&name).ok_or_else(|| {
                let hinting = hints();
                let names = map.keys().map(String::as_str).take_while(|_| hinting);
                format!("there is no key \"{name}\" here{}", did_you_mean(&name, names))
            })
        }
        other => Err(format!("{} has no elements", described(other))),
    }
}

/// Arithmetic on numbers: exact while both are whole, else in floating point.
pub(super) fn arithmetic(operator: Operator, l: Number, r: Number) -> std::result::Result<Value, String> {
    let comparison = match operator {
        Operator::Less => Some(l.compare(r).is_lt()),
        Operator::LessEq => Some(l.compare(r).is_le()),
        Operator::Greater => Some(l.compare(r).is_gt()),
        Operator::GreaterEq => Some(l.compare(r).is_ge()),
        _ => None,
    };
    if let Some(answer) = comparison {
        return Ok(Value::Bool(answer));
    }
    if matches!(operator, Operator::Div | Operator::Mod) && r.to_f64() == 0.0 {
        return Err("division by zero".to_owned());
    }
    if let (Number::Int(a), Number::Int(b)) = (l, r) {
        let exact = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Sub => a.checked_sub(b),
            Operator::Mul => a.checked_mul(b),
            Operator::Div => a.checked_rem(b).filter(|rest| *rest == 0).and_then(|_| a.checked_div(b)),
            _ => a.checked_rem(b),
        };
        if let Some(int) = exact {
            return Ok(Value::int(int));
        }
    }
    let (a, b) = (l.to_f64(), r.to_f64());
    let float = match operator {
        Operator::Add => decimal(a + b),
        Operator::Sub => decimal(a - b),
        Operator::Mul => decimal(a * b),
        Operator::Div => a / b,
        _ => decimal(a % b),
    };
    Number::from_f64(float).map(Value::Number).ok_or_else(|| "the result is too large".to_owned())
}

/// Drops the last two of a float's 17 digits, so that sums of decimal fractions read as a person expects.
fn decimal(float: f64) -> f64 {
    format!("{float:.14e}").parse().unwrap_or(float)
}
