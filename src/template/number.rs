//! Numbers as Go writes and reads them.

/// A number of a template, as each of the types that it fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Number {
    pub(super) int: Option<i64>,
    pub(super) uint: Option<u64>,
    pub(super) float: Option<f64>,
    /// It is written as a floating point number.
    pub(super) is_float: bool,
}

/// Reads a literal: of an integer in each of Go's bases, or of a floating point number. `None` for what is none.
pub(super) fn literal(text: &str) -> Option<Number> {
    let digits = text.trim_start_matches(['+', '-']);
    let hexadecimal = digits.starts_with("0x") || digits.starts_with("0X");
    let is_float =
        text.contains('.') || (!hexadecimal && text.contains(['e', 'E'])) || (hexadecimal && text.contains(['p', 'P']));
    if is_float {
        let float = if hexadecimal { hex_float(text)? } else { float(text)? };
        // A whole one is an integer too.
        let whole = float.fract() == 0.0 && float.abs() < 9.2e18;
        let int = whole.then_some(float as i64);
        let uint = (whole && float >= 0.0).then_some(float as u64);
        return Some(Number { int, uint, float: Some(float), is_float });
    }
    let uint = if text.starts_with(['+', '-']) { None } else { integer(text).and_then(|n| u64::try_from(n).ok()) };
    let int = integer(text).and_then(|n| i64::try_from(n).ok());
    let float = int.map(|n| n as f64).or(uint.map(|n| n as f64));
    float?;
    Some(Number { int, uint: uint.or(int.filter(|n| *n == 0).map(|_| 0)), float, is_float })
}

/// An integer as `strconv.ParseInt` reads it with base 0.
pub(super) fn integer(text: &str) -> Option<i128> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = rest.to_ascii_lowercase();
    let (radix, digits, prefixed) = if let Some(d) = lower.strip_prefix("0x") {
        (16, d, true)
    } else if let Some(d) = lower.strip_prefix("0o") {
        (8, d, true)
    } else if let Some(d) = lower.strip_prefix("0b") {
        (2, d, true)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..], true)
    } else {
        (10, lower.as_str(), false)
    };
    let plain = without_underscores(digits, prefixed)?;
    if !plain.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let value = i128::from_str_radix(&plain, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// Underscores stand between digits, or after the base.
fn without_underscores(digits: &str, prefixed: bool) -> Option<String> {
    let misplaced = digits.ends_with('_') || digits.contains("__") || (!prefixed && digits.starts_with('_'));
    (!misplaced).then(|| digits.replace('_', ""))
}

/// A floating point number as `strconv.ParseFloat` reads it, without a base.
pub(super) fn float(text: &str) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let bare = lower.trim_start_matches(['+', '-']);
    if matches!(bare, "inf" | "infinity" | "nan") {
        return if text.len() - bare.len() <= 1 { lower.parse().ok() } else { None };
    }
    if bare.starts_with("0x") {
        return hex_float(text);
    }
    let plain = without_underscores(text, false)?;
    if plain.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')) {
        return None;
    }
    plain.parse().ok().filter(|f: &f64| f.is_finite())
}

/// `0x1.8p3`
fn hex_float(text: &str) -> Option<f64> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = rest.to_ascii_lowercase().replace('_', "");
    let (mantissa, exponent) = lower.strip_prefix("0x")?.split_once('p')?;
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.len() + part.len() == 0 || whole.len() + part.len() > 13 {
        return None;
    }
    let digits = u64::from_str_radix(&format!("{whole}{part}"), 16).ok()?;
    let exponent = exponent.parse::<i32>().ok().filter(|e| e.abs() < 2000)?;
    let value = digits as f64 * 2f64.powi(exponent - 4 * part.len() as i32);
    Some(if negative { -value } else { value })
}

/// The shortest digits that give `value` again, and the place of the point: 0.d1d2d3 * 10^point.
fn shortest(value: f64) -> (Vec<u8>, i32) {
    let text = format!("{:e}", value.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    if value == 0.0 { (vec![b'0'], 1) } else { (digits, point) }
}

fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        Some("NaN".to_owned())
    } else if value.is_infinite() {
        Some(if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned())
    } else {
        None
    }
}

/// As `strconv.FormatFloat` with the verb `e`, `f` or `g` (or their capitals) and a precision, or the shortest.
pub(super) fn format_float(value: f64, verb: char, precision: Option<usize>) -> String {
    if let Some(text) = special(value) {
        return text;
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let magnitude = value.abs();
    let scientific = |digits: Option<usize>| {
        let text = digits.map_or_else(|| format!("{magnitude:e}"), |n| format!("{magnitude:.n$e}"));
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (direction, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        format!("{mantissa}e{direction}{exponent:0>2}")
    };
    let text = match verb.to_ascii_lowercase() {
        'e' => scientific(precision),
        'f' => precision.map_or_else(|| format!("{magnitude}"), |n| format!("{magnitude:.n$}")),
        _ => {
            // The exponent decides, after rounding.
            let (digits, point) = match precision {
                None => shortest(value),
                Some(n) => {
                    let text = format!("{:.*e}", n.max(1) - 1, magnitude);
                    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                    let digits = mantissa.bytes().filter(u8::is_ascii_digit).collect();
                    (digits, exponent.parse::<i32>().unwrap_or(0) + 1)
                }
            };
            let significant = digits.iter().rposition(|d| *d != b'0').map_or(1, |i| i + 1);
            let most = match precision {
                None => 6,
                Some(n) => {
                    let n = n.max(1) as i32;
                    if n > significant as i32 && significant as i32 >= point { significant as i32 } else { n }
                }
            };
            if magnitude != 0.0 && (point - 1 < -4 || point > most) {
                scientific(Some(significant - 1))
            } else {
                let places = (significant as i32 - point).max(0) as usize;
                format!("{magnitude:.places$}")
            }
        }
    };
    let text = if verb.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text };
    format!("{sign}{text}")
}
