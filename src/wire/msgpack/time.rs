//! Go's times and byte strings.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// Seconds from the year 1, where Go counts from, to 1970.
const UNIX_OF_YEAR_1: i64 = 62_135_596_800;
/// The zone of a time in UTC, in minutes: no zone is one minute west of it.
const UTC: i16 = -1;

/// A point in time as Go writes it in binary: in text of 15 bytes, or 16 where the zone has seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GoTime {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below a billion.
    pub nanos: u32,
    /// Seconds east of UTC; `None` is UTC itself.
    pub offset: Option<i32>,
}

impl GoTime {
    /// What Go has where nobody set a time: the first second of the year 1, UTC.
    pub const ZERO: GoTime = GoTime { seconds: -UNIX_OF_YEAR_1, nanos: 0, offset: None };

    /// Whether nobody set it.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        (self.seconds, self.nanos) == (GoTime::ZERO.seconds, 0)
    }

    /// The point in time, without its zone; `None` where this system's clock cannot say it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = if self.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
        whole?.checked_add(Duration::from_nanos(self.nanos.into()))
    }

    /// The binary form.
    ///
    /// # Errors
    /// A zone that the form cannot say: one minute west of UTC, or more than 22 days off.
    pub fn to_bytes(self) -> Result<Vec<u8>, super::Error> {
        let mut zone = UTC;
        let mut zone_seconds = None;
        if let Some(offset) = self.offset {
            let minutes = i16::try_from(offset / 60).ok().filter(|minutes| *minutes != UTC);
            zone = minutes.ok_or_else(|| super::Error::Message(format!("a zone of {offset} s has no binary form")))?;
            zone_seconds = Some(offset % 60).filter(|seconds| *seconds != 0);
        }
        let mut bytes = vec![if zone_seconds.is_some() { 2 } else { 1 }];
        bytes.extend(self.seconds.wrapping_add(UNIX_OF_YEAR_1).to_be_bytes());
        bytes.extend(self.nanos.to_be_bytes());
        bytes.extend(zone.to_be_bytes());
        bytes.extend(zone_seconds.map(|seconds| (seconds as i8).cast_unsigned()));
        Ok(bytes)
    }

    /// Reads the binary form.
    ///
    /// # Errors
    /// Bytes of another length or version.
    pub fn from_bytes(bytes: &[u8]) -> Result<GoTime, super::Error> {
        let wrong = || super::Error::Message(format!("{} bytes are no time in Go's binary form", bytes.len()));
        let (version, rest) = bytes.split_first().ok_or_else(wrong)?;
        let (seconds, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        let (nanos, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        let (zone, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
        let zone_seconds = match (version, rest) {
            (1, []) => 0,
            (2, [seconds]) => seconds.cast_signed(),
            _ => return Err(wrong()),
        };
        let zone = i16::from_be_bytes(*zone);
        Ok(GoTime {
            seconds: i64::from_be_bytes(*seconds).wrapping_sub(UNIX_OF_YEAR_1),
            nanos: u32::from_be_bytes(*nanos),
            offset: (zone != UTC || zone_seconds != 0).then(|| i32::from(zone) * 60 + i32::from(zone_seconds)),
        })
    }
}

impl Default for GoTime {
    fn default() -> GoTime {
        GoTime::ZERO
    }
}

impl From<SystemTime> for GoTime {
    /// In UTC.
    fn from(time: SystemTime) -> GoTime {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => GoTime { seconds: after.as_secs() as i64, nanos: after.subsec_nanos(), offset: None },
            Err(before) => {
                let before = before.duration();
                let borrow = i64::from(before.subsec_nanos() > 0);
                let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
                GoTime { seconds: -(before.as_secs() as i64) - borrow, nanos, offset: None }
            }
        }
    }
}

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes().map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for GoTime {
    /// Nil is [`GoTime::ZERO`].
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GoTime, D::Error> {
        match Option::<Bytes>::deserialize(deserializer)? {
            None => Ok(GoTime::ZERO),
            Some(bytes) => GoTime::from_bytes(&bytes.0).map_err(de::Error::custom),
        }
    }
}

/// A byte string: one text on the wire, not a list of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                self.visit_bytes(text.as_bytes())
            }
        }
        deserializer.deserialize_bytes(BytesVisitor)
    }
}
