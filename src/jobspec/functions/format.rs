//! The functions `format` and `formatlist` of the job file.

use super::{Outcome, encoding, text};
use crate::jobspec::value::{Number, Value};

/// Largest width or precision, and most rows of `formatlist`.
const LIMIT: usize = 1024;

pub(super) fn format(args: &[Value]) -> Outcome {
    formatted(&text(args, 0)?, &args[1..]).map(Value::String)
}

/// One string per element of the lists among the arguments, which have one length.
pub(super) fn formatlist(args: &[Value]) -> Outcome {
    let pattern = text(args, 0)?;
    let lists = args[1..].iter().filter_map(Value::elements).map(<[Value]>::len);
    let length = lists.clone().max().unwrap_or(1);
    if lists.clone().any(|l| l != length) {
        return Err("the lists have different lengths".to_owned());
    }
    let row = |i: usize| {
        let row: Vec<Value> =
            args[1..].iter().map(|a| a.elements().map_or_else(|| a.clone(), |items| items[i].clone())).collect();
        formatted(&pattern, &row).map(Value::String)
    };
    (0..length).map(row).collect::<Result<_, _>>().map(Value::List)
}

#[derive(Default)]
struct Verb {
    left: bool,
    plus: bool,
    zero: bool,
    space: bool,
    sharp: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

fn formatted(pattern: &str, args: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = pattern.chars().peekable();
    let mut next_arg = 0;
    let mut used = 0;
    let mut explicit = false;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = Verb::default();
        while let Some(flag) = chars.next_if(|c| "-+0 #".contains(*c)) {
            match flag {
                '-' => verb.left = true,
                '+' => verb.plus = true,
                '0' => verb.zero = true,
                ' ' => verb.space = true,
                _ => verb.sharp = true,
            }
        }
        verb.width = digits(&mut chars)?;
        if chars.next_if_eq(&'.').is_some() {
            verb.precision = Some(digits(&mut chars)?.unwrap_or(0));
        }
        if chars.next_if_eq(&'[').is_some() {
            let index = digits(&mut chars)?.filter(|i| *i > 0).ok_or("an argument number starts from 1")?;
            chars.next_if_eq(&']').ok_or("an argument number must be closed with ]")?;
            next_arg = index - 1;
            explicit = true;
        }
        let letter = chars.next().ok_or("the pattern ends inside a verb; write %% for a percent sign")?;
        if letter == '%' {
            out.push('%');
            continue;
        }
        let arg = args.get(next_arg).ok_or_else(|| format!("there is no argument {} for %{letter}", next_arg + 1))?;
        next_arg += 1;
        used = used.max(next_arg);
        out.push_str(&verb.show(letter, arg)?);
    }
    if !explicit && used < args.len() {
        return Err(format!("the pattern uses {used} of {} arguments", args.len()));
    }
    Ok(out)
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>, String> {
    let mut number = None;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        let value = number.unwrap_or(0) * 10 + digit as usize - '0' as usize;
        if value > LIMIT {
            return Err(format!("a width is at most {LIMIT}"));
        }
        number = Some(value);
    }
    Ok(number)
}

impl Verb {
    fn show(&self, letter: char, arg: &Value) -> Result<String, String> {
        let unsuitable = || format!("%{letter} cannot show a {}", arg.type_name());
        let number = || arg.to_number().ok_or_else(unsuitable);
        let whole = || number()?.to_int().ok_or_else(|| format!("%{letter} needs a whole number"));
        let body = match letter {
            'v' => match arg {
                Value::String(s) if self.sharp => serde_json::Value::from(s.as_str()).to_string(),
                Value::String(s) => s.clone(),
                Value::Number(n) => return Ok(self.signed(&n.to_string())),
                other => encoding::jsonencode(std::slice::from_ref(other))?.to_text().unwrap_or_default(),
            },
            's' => self.cut(arg.to_text().ok_or_else(unsuitable)?),
            'q' => serde_json::Value::from(self.cut(arg.to_text().ok_or_else(unsuitable)?)).to_string(),
            't' => arg.to_bool().ok_or_else(unsuitable)?.to_string(),
            'd' => return Ok(self.signed(&whole()?.to_string())),
            'b' | 'o' | 'x' | 'X' => {
                let int = whole()?;
                let sign = if int < 0 { "-" } else { "" };
                let magnitude = int.unsigned_abs();
                let digits = match letter {
                    'b' => format!("{magnitude:b}"),
                    'o' => format!("{magnitude:o}"),
                    'x' => format!("{magnitude:x}"),
                    _ => format!("{magnitude:X}"),
                };
                return Ok(self.signed(&format!("{sign}{digits}")));
            }
            'f' | 'F' => {
                let precision = self.precision.unwrap_or(6);
                return Ok(self.signed(&match number()? {
                    Number::Int(i) if precision == 0 => i.to_string(),
                    Number::Int(i) => format!("{i}.{:0<precision$}", ""),
                    Number::Float(f) => format!("{f:.precision$}"),
                }));
            }
            'e' | 'E' => {
                let shown = exponential(number()?.to_f64(), self.precision.unwrap_or(6));
                return Ok(self.signed(&if letter == 'E' { shown.to_uppercase() } else { shown }));
            }
            'g' | 'G' => return Ok(self.signed(&self.general(number()?))),
            other => return Err(format!("unknown verb %{other}")),
        };
        Ok(self.padded(&body))
    }

    fn cut(&self, text: String) -> String {
        match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        }
    }

    /// The shortest form, or one of as many digits as the precision; an exponent where that is no longer.
    fn general(&self, number: Number) -> String {
        let float = number.to_f64();
        let shown = match self.precision {
            Some(digits) => format!("{float:.*e}", digits.max(1) - 1),
            None => format!("{float:e}"),
        };
        let (mantissa, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
        let mantissa =
            if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
        let exp: i64 = exponent.parse().unwrap_or(0);
        let digits = mantissa.bytes().filter(u8::is_ascii_digit).fold(0i64, |n, _| n + 1);
        let limit = match self.precision.and_then(|p| i64::try_from(p.max(1)).ok()) {
            None => 6,
            Some(precision) if precision > digits && digits > exp => digits,
            Some(precision) => precision,
        };
        if exp < -4 || exp >= limit {
            return with_exponent(mantissa, exponent);
        }
        let fraction = usize::try_from(digits - 1 - exp).unwrap_or(0);
        format!("{:.fraction$}", shown.parse().unwrap_or(float))
    }

    fn signed(&self, number: &str) -> String {
        let (sign, digits) = match number.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None if self.plus => ("+", number),
            None if self.space => (" ", number),
            None => ("", number),
        };
        let missing = self.width.unwrap_or(0).saturating_sub(sign.len() + digits.len());
        if self.zero && !self.left {
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        self.padded(&format!("{sign}{digits}"))
    }

    fn padded(&self, body: &str) -> String {
        let spaces = " ".repeat(self.width.unwrap_or(0).saturating_sub(body.chars().count()));
        if self.left { format!("{body}{spaces}") } else { format!("{spaces}{body}") }
    }
}

fn exponential(float: f64, precision: usize) -> String {
    let shown = format!("{float:.precision$e}");
    let (mantissa, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    with_exponent(mantissa, exponent)
}

/// The exponent has a sign and at least two digits.
fn with_exponent(mantissa: &str, exponent: &str) -> String {
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}
