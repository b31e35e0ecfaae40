//! Times as Nomad's API writes them: a number of nanoseconds, or RFC 3339.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds since 1970, or of a duration: Nomad's `CreateTime`, `Wait`, an event's `Time`. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub i64);

impl Nanos {
    /// This moment.
    #[must_use]
    pub fn of(time: SystemTime) -> Nanos {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Nanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// This long.
    #[must_use]
    pub fn long(duration: Duration) -> Nanos {
        Nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }

    /// As a duration; none is zero, as is less than that.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Later by `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(Nanos::long(duration).0))
    }
}

/// A moment that is written as RFC 3339; none is Go's zero time, `0001-01-01T00:00:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub Option<Nanos>);

/// Go's zero time.
const ZERO: &str = "0001-01-01T00:00:00Z";

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(nanos) => {
                let time = SystemTime::UNIX_EPOCH + nanos.duration();
                serializer.collect_str(&humantime::format_rfc3339_nanos(time))
            }
            None => serializer.serialize_str(ZERO),
        }
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == ZERO {
            return Ok(Stamp(None));
        }
        let time = humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)?;
        Ok(Stamp(Some(Nanos::of(time))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_rfc_3339_and_none_as_go_s_zero() {
        let stamp = Stamp(Some(Nanos(1_700_000_000_123_456_789)));
        let text = serde_json::to_string(&stamp).unwrap();
        assert_eq!(text, "\"2023-11-14T22:13:20.123456789Z\"");
        assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), stamp);
        assert_eq!(serde_json::to_string(&Stamp(None)).unwrap(), "\"0001-01-01T00:00:00Z\"");
        assert_eq!(serde_json::from_str::<Stamp>("\"0001-01-01T00:00:00Z\"").unwrap(), Stamp(None));
    }
}
