//! Durations as Go writes them: `1h30m`, `1.5s`, `250ms`, `-2us`.

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Nanoseconds of a duration, which may be negative.
pub(super) fn parse_signed(text: &str) -> Result<i64, String> {
    let wrong = || format!("\"{text}\" is not a duration such as 30s, 5m or 1h30m");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total = 0i128;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(wrong());
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
        let mut scale = *nanos;
        let mut part = whole.checked_mul(scale).ok_or_else(wrong)?;
        for digit in fraction.bytes().take(18) {
            // A digit below a nanosecond is cut off.
            part = part.checked_add(i128::from(digit - b'0') * scale / 10).ok_or_else(wrong)?;
            scale = if scale % 10 == 0 { scale / 10 } else { 0 };
        }
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| format!("\"{text}\" is too long a duration"))
}

#[cfg(test)]
mod tests {
    use super::parse_signed;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-250ms", -250_000_000),
            ("+3us", 3_000),
            ("2\u{b5}s", 2_000),
            ("1.25m", 75_000_000_000),
            ("1m0.001s", 60_001_000_000),
            ("0.1234567891s", 123_456_789),
        ] {
            assert_eq!(parse_signed(text), Ok(nanos), "{text}");
        }
        for wrong in ["", "-", "5", "5 s", "s", ".s", "1.2.3s", "5d", "1h-3m", "abc", "99999999h", "٣s"] {
            assert!(parse_signed(wrong).is_err(), "{wrong}");
        }
    }
}
