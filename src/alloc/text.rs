//! Text forms of durations and digests.

use std::fmt::Write as _;
use std::time::Duration;

/// So many names are shown of a list.
const MOST_NAMES: usize = 3;

/// A duration as Go prints it: `1h0m5s`, `1.5s`, `250ms`, `0s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let unit = |divisor: u128, name: &str| {
        let (whole, rest) = (nanos / divisor, nanos % divisor);
        let width = divisor.ilog10() as usize;
        let fraction = format!("{rest:0width$}");
        let fraction = if rest == 0 { "" } else { fraction.trim_end_matches('0') };
        let dot = if fraction.is_empty() { "" } else { "." };
        format!("{whole}{dot}{fraction}{name}")
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => unit(1_000, "µs"),
        1_000_000..1_000_000_000 => unit(1_000_000, "ms"),
        _ => {
            let minutes = duration.as_secs() / 60;
            let mut text = String::new();
            if minutes >= 60 {
                let _ = write!(text, "{}h", minutes / 60);
            }
            if minutes > 0 {
                let _ = write!(text, "{}m", minutes % 60);
            }
            let seconds = Duration::new(duration.as_secs() % 60, duration.subsec_nanos()).as_secs_f64();
            let _ = write!(text, "{seconds}s");
            text
        }
    }
}

/// The names of what is missing, as Nomad shows them: three, and how many more there are.
pub(super) fn some_of(names: &[String]) -> String {
    let shown = names.get(..MOST_NAMES).unwrap_or(names).join(", ");
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

/// Hexadecimal, two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_names_of_many_are_shown() {
        let names = |count: usize| (1..=count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        for (count, expected) in [(0, ""), (1, "n1"), (3, "n1, n2, n3"), (5, "n1, n2, n3, and 2 more")] {
            assert_eq!(some_of(&names(count)), expected);
        }
    }

    #[test]
    fn durations_read_as_go_prints_them() {
        let cases = [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(7), "7ns"),
            (Duration::from_micros(1500), "1.5ms"),
            (Duration::from_nanos(1500), "1.5µs"),
            (Duration::from_millis(16_250), "16.25s"),
            (Duration::from_secs(10), "10s"),
            (Duration::from_mins(1), "1m0s"),
            (Duration::from_mins(30), "30m0s"),
            (Duration::from_hours(24), "24h0m0s"),
            (Duration::from_millis(3_661_005), "1h1m1.005s"),
        ];
        for (duration, text) in cases {
            assert_eq!(go_duration(duration), text);
        }
    }
}
