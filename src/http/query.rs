//! Query parameters, read as Go's programs write them.

use std::time::Duration;

/// The parameters of a request, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads what stands after the `?`. What cannot be decoded is left out, as Go's `url.Values` leaves it out.
    #[must_use]
    pub fn new(text: &str) -> Query {
        let decode = |part: &str| super::route::decode(&part.replace('+', " "));
        let pairs = text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        let pairs = pairs.filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(key)?, decode(value)?))
        });
        Query(pairs.collect())
    }

    /// The first value of a parameter.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The first value, unless it is empty.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|v| !v.is_empty())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// It is there, with whatever value.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A switch as Go's `strconv.ParseBool` reads it; `None` when it is absent or empty.
    ///
    /// # Errors
    /// The text, where it is not a switch.
    pub fn switch(&self, key: &str) -> Result<Option<bool>, String> {
        match self.text(key) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(other) => Err(other.to_owned()),
        }
    }
}

/// A duration as Go writes it (`1h15m30.5s`, `60000ms`, `0`); `None` for what is none, is negative or does not fit.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0.0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, length) = unit(&rest[end..])?;
        nanos += number * unit;
        rest = &rest[end + length..];
    }
    (nanos < 9.2e18).then(|| Duration::from_nanos(nanos as u64))
}

/// A unit at the start of a text: how many nanoseconds it has, and how many bytes its name.
fn unit(text: &str) -> Option<(f64, usize)> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];
    units.iter().find(|(name, _)| text.starts_with(name)).map(|(name, nanos)| (*nanos, name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_go_reads_them() {
        let query = Query::new("prefix=a%2Fb&stale=&pretty&all=True&x=1&x=2&filter=A+%3D%3D+%22b%22&bad=%zz&;y=1");
        assert_eq!(query.get("prefix"), Some("a/b"));
        assert_eq!((query.get("stale"), query.text("stale"), query.has("pretty")), (Some(""), None, true));
        assert_eq!(query.get("filter"), Some("A == \"b\""));
        assert_eq!(query.all("x").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(
            (query.switch("all"), query.switch("none"), query.switch("stale")),
            (Ok(Some(true)), Ok(None), Ok(None))
        );
        assert_eq!(Query::new("all=yes").switch("all"), Err("yes".to_owned()));
        assert_eq!((query.get("bad"), query.get("y")), (None, None));
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let millis = |text| duration(text).map(|d| d.as_millis());
        for (text, expected) in [
            ("5m", 300_000),
            ("60000ms", 60_000),
            ("1h15m30.5s", 4_530_500),
            ("0", 0),
            ("+1s", 1000),
            ("1500us", 1),
            ("2µs", 0),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
        for text in ["", "5", "x", "1d", "-1s", "s", "1..2s", "99999999999h", "5 m"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
