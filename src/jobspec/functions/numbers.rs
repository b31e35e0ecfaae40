//! Functions of the job file on numbers.

use super::{Outcome, int, number, text};
use crate::jobspec::value::{Number, Value};

fn from_f64(float: f64) -> Outcome {
    Number::from_f64(float).map(Value::Number).ok_or_else(|| "the result is not a number".to_owned())
}

pub(super) fn abs(args: &[Value]) -> Outcome {
    match number(args, 0)? {
        Number::Int(i) => i.checked_abs().map(Value::int).ok_or_else(|| "the number is too large".to_owned()),
        Number::Float(f) => from_f64(f.abs()),
    }
}

pub(super) fn ceil(args: &[Value]) -> Outcome {
    match number(args, 0)? {
        int @ Number::Int(_) => Ok(Value::Number(int)),
        Number::Float(f) => from_f64(f.ceil()),
    }
}

pub(super) fn floor(args: &[Value]) -> Outcome {
    match number(args, 0)? {
        int @ Number::Int(_) => Ok(Value::Number(int)),
        Number::Float(f) => from_f64(f.floor()),
    }
}

pub(super) fn log(args: &[Value]) -> Outcome {
    from_f64(number(args, 0)?.to_f64().ln() / number(args, 1)?.to_f64().ln())
}

pub(super) fn max(args: &[Value]) -> Outcome {
    extreme(args, std::cmp::Ordering::Greater)
}

pub(super) fn min(args: &[Value]) -> Outcome {
    extreme(args, std::cmp::Ordering::Less)
}

fn extreme(args: &[Value], wanted: std::cmp::Ordering) -> Outcome {
    let mut best = number(args, 0)?;
    for i in 1..args.len() {
        let next = number(args, i)?;
        if next.compare(best) == wanted {
            best = next;
        }
    }
    Ok(Value::Number(best))
}

pub(super) fn parseint(args: &[Value]) -> Outcome {
    let (written, base) = (text(args, 0)?, int(args, 1)?);
    if !(2..=62).contains(&base) {
        return Err("the base must be 2 to 62".to_owned());
    }
    let wrong = || format!("\"{written}\" is not a whole number in base {base}");
    let (sign, digits) = match written.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, written.as_str()),
    };
    if digits.is_empty() {
        return Err(wrong());
    }
    let mut value = 0i128;
    for c in digits.bytes() {
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'z' => c - b'a' + 10,
            b'A'..=b'Z' if base <= 36 => c - b'A' + 10,
            b'A'..=b'Z' => c - b'A' + 36,
            _ => return Err(wrong()),
        };
        if i128::from(digit) >= base {
            return Err(wrong());
        }
        value =
            value.checked_mul(base).and_then(|v| v.checked_add(i128::from(digit))).ok_or("the number is too large")?;
    }
    Ok(Value::int(sign * value))
}

pub(super) fn pow(args: &[Value]) -> Outcome {
    let (base, exponent) = (number(args, 0)?, number(args, 1)?);
    if let (Number::Int(b), Some(e)) = (base, exponent.to_int().and_then(|e| u32::try_from(e).ok()))
        && let Some(exact) = b.checked_pow(e)
    {
        return Ok(Value::int(exact));
    }
    from_f64(base.to_f64().powf(exponent.to_f64()))
}

pub(super) fn signum(args: &[Value]) -> Outcome {
    Ok(Value::int(match number(args, 0)? {
        Number::Int(i) => i.signum(),
        Number::Float(f) if f < 0.0 => -1,
        Number::Float(_) => 1,
    }))
}
