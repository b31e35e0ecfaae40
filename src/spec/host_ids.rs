//! Ranges of host ids for the users and groups of an allocation.

use std::fmt;

/// The host's numbers of an allocation's users and groups: id `n` inside is `base + n` outside, for each `n` below
/// [`HostIds::COUNT`]. Nobody else on the machine has any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct HostIds {
    base: u32,
}

impl HostIds {
    /// Ids of a range: all that 16 bits can name, and so every user of a usual passwd file, nobody included.
    pub const COUNT: u32 = 1 << 16;

    /// The range that begins with `base`, a multiple of [`HostIds::COUNT`] other than 0; the last such range holds the id
    /// that means "no change", and is none.
    #[must_use]
    pub const fn new(base: u32) -> Option<HostIds> {
        let is_one = base.is_multiple_of(Self::COUNT) && base != 0 && base.checked_add(Self::COUNT).is_some();
        if is_one { Some(HostIds { base }) } else { None }
    }

    /// The host's number of root inside.
    #[must_use]
    pub const fn base(self) -> u32 {
        self.base
    }

    /// The host's number of an id inside; `None` for one that a range does not have.
    #[must_use]
    pub const fn outside(self, inside: u32) -> Option<u32> {
        if inside < Self::COUNT { Some(self.base + inside) } else { None }
    }

    /// The host's number of an id of a task, which is the same without a range and above one.
    #[must_use]
    pub fn on_host(range: Option<HostIds>, id: u32) -> u32 {
        range.and_then(|range| range.outside(id)).unwrap_or(id)
    }

    /// Whether the host's id is one of these.
    #[must_use]
    pub const fn contains(self, outside: u32) -> bool {
        outside >= self.base && outside - self.base < Self::COUNT
    }
}

impl fmt::Display for HostIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.base, self.base + (Self::COUNT - 1))
    }
}

/// The host ids that are divided into ranges for allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIdSpace {
    first: HostIds,
    last: HostIds,
}

impl HostIdSpace {
    /// Above what systemd's containers (to 1879048191) and the subordinate ids of `useradd` take, and below what a signed
    /// number holds.
    pub const DEFAULT: HostIdSpace =
        HostIdSpace { first: HostIds { base: 1_879_048_192 }, last: HostIds { base: 2_147_287_040 } };

    /// Reads `first-last`, host ids that begin and end a range.
    #[must_use]
    pub fn parse(text: &str) -> Option<HostIdSpace> {
        let (first, last) = text.split_once('-')?;
        let first = HostIds::new(first.trim().parse().ok()?)?;
        let end: u32 = last.trim().parse().ok()?;
        let last = HostIds::new(end.checked_sub(HostIds::COUNT - 1)?)?;
        (first <= last).then_some(HostIdSpace { first, last })
    }

    /// The ranges from 65536 on, one at least: what is given away in a user namespace of a plain user's.
    #[must_use]
    pub const fn first_ranges(count: u32) -> HostIdSpace {
        let first = HostIds { base: HostIds::COUNT };
        let most = (u32::MAX - HostIds::COUNT + 1) / HostIds::COUNT - 1;
        let last = if count == 0 {
            1
        } else if count > most {
            most
        } else {
            count
        };
        HostIdSpace { first, last: HostIds { base: last * HostIds::COUNT } }
    }

    /// A single range.
    #[must_use]
    pub const fn only(ids: HostIds) -> HostIdSpace {
        HostIdSpace { first: ids, last: ids }
    }

    /// How many ranges there are.
    #[must_use]
    pub const fn ranges(self) -> u32 {
        (self.last.base - self.first.base) / HostIds::COUNT + 1
    }

    /// All ranges, beginning after `used`, and at last those before it.
    pub fn after(self, used: Option<HostIds>) -> impl Iterator<Item = HostIds> {
        let at = used.filter(|used| (self.first..=self.last).contains(used));
        let start = at.map_or(0, |used| (used.base - self.first.base) / HostIds::COUNT + 1);
        let number = move |n: u32| HostIds { base: self.first.base + (start + n) % self.ranges() * HostIds::COUNT };
        (0..self.ranges()).map(number)
    }

    /// The range that has the host's id, if it is one of these.
    #[must_use]
    pub fn range_of(self, outside: u32) -> Option<HostIds> {
        HostIds::new(outside - outside % HostIds::COUNT).filter(|ids| (self.first..=self.last).contains(ids))
    }
}

impl fmt::Display for HostIdSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first.base, self.last.base + (HostIds::COUNT - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_begin_where_they_are_said_to() {
        let space = HostIdSpace::DEFAULT;
        assert_eq!(space.to_string(), "1879048192-2147352575");
        assert_eq!(HostIdSpace::parse("1879048192-2147352575"), Some(space));
        assert_eq!((space.ranges(), space.after(None).count()), (4094, 4094));
        let all: crate::spec::collections::BTreeSet<_> = space.after(None).collect();
        assert_eq!(all.len(), 4094, "none twice");
        let two = HostIdSpace::parse("131072-262143").unwrap();
        let bases = |used: Option<u32>| two.after(used.and_then(HostIds::new)).map(HostIds::base).collect::<Vec<_>>();
        assert_eq!(bases(None), [131_072, 196_608]);
        assert_eq!(bases(Some(131_072)), [196_608, 131_072]);
        assert_eq!(bases(Some(196_608)), [131_072, 196_608]);
        assert_eq!(bases(Some(65_536)), [131_072, 196_608], "a range of another space");
        assert_eq!(HostIdSpace::first_ranges(2).to_string(), "65536-196607");
        assert_eq!((HostIdSpace::first_ranges(0).ranges(), HostIdSpace::first_ranges(u32::MAX).ranges()), (1, 65_534));
        for text in
            ["", "1-2", "0-65535", "65536-131070", "131072-65535", "131072-131071", "65536", "4294901760-4294967295"]
        {
            assert_eq!(HostIdSpace::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_id_inside_has_one_number_outside() {
        let ids = HostIds::new(1_879_048_192).unwrap();
        assert_eq!((ids.outside(0), ids.outside(65_535)), (Some(1_879_048_192), Some(1_879_113_727)));
        assert_eq!((ids.outside(65_536), ids.contains(1_879_113_728), ids.contains(0)), (None, false, false));
        assert!(ids.contains(1_879_113_727));
        assert_eq!(HostIdSpace::DEFAULT.range_of(1_879_113_727), Some(ids));
        assert_eq!(HostIdSpace::DEFAULT.range_of(1000), None);
        assert_eq!((HostIds::new(0), HostIds::new(1000), HostIds::new(4_294_901_760)), (None, None, None));
    }
}
