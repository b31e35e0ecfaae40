//! Sets of processors in the kernel's list format.

use std::fmt;
use std::str::FromStr;

use super::IntoSet as _;
use crate::spec::collections::BTreeSet;

/// A set of processors, in the text form of the kernel: `0-3,7`. See `cpuset(7)`, "List format".
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CpuSet(BTreeSet<u32>);

/// Most processors that a kernel is built for (`CONFIG_NR_CPUS`).
const MOST: u32 = 8192;

/// A text that is not a list of processors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of processors; write numbers below {MOST} and ranges with commas between them: \"0-3,7\"")]
pub struct CpuSetError(String);

impl CpuSet {
    /// The processors `0` to `count - 1`.
    #[must_use]
    pub fn first(count: u32) -> CpuSet {
        (0..count).collect()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Those of either.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.iter().chain(other.iter()).into_set())
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().into_set())
    }

    /// Whether all are in `other`.
    #[must_use]
    pub fn is_within(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cores: I) -> CpuSet {
        CpuSet(cores.into_iter().into_set())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Takes white space around numbers and a range in either direction, as Nomad does; the empty text is the empty set.
    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        let error = || CpuSetError(text.to_owned());
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < MOST).ok_or_else(error);
        let mut cores = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            match part.split_once('-') {
                None => cores.extend([number(part)?]),
                Some((from, to)) => {
                    let (from, to) = (number(from)?, number(to)?);
                    cores.extend(from.min(to)..=from.max(to));
                }
            }
        }
        Ok(CpuSet(cores))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::CpuSet;

    fn read(text: &str) -> String {
        text.parse::<CpuSet>().map_or_else(|e| e.to_string(), |cores| cores.to_string())
    }

    /// C3, with the samples of Nomad's list syntax.
    #[test]
    fn c3_lists_are_read_and_written_as_the_kernel_does() {
        for (text, same) in [
            ("", ""),
            (" \n", ""),
            ("0", "0"),
            ("0,1", "0-1"),
            ("11,14,16-18\n", "11,14,16-18"),
            ("10, 12-13 ,15,19", "10,12-13,15,19"),
            ("5-3", "3-5"),
            ("1,1,2", "1-2"),
            ("8191", "8191"),
        ] {
            assert_eq!(read(text), same, "{text:?}");
        }
        for text in ["a", "1-", "-1", "1,,2", "8192", "1-2-3", "0x1", "4294967296"] {
            assert!(read(text).contains("is not a list of processors"), "{text:?}");
        }
    }

    #[test]
    fn c3_sets_are_sets() {
        let (few, many): (CpuSet, CpuSet) = ("1-2".parse().unwrap(), "0-3".parse().unwrap());
        assert!(few.is_within(&many) && !many.is_within(&few));
        assert_eq!(many.without(&few).to_string(), "0,3");
        assert_eq!(few.union(&many), many);
        assert_eq!(CpuSet::first(4), many);
        assert_eq!((many.len(), CpuSet::default().is_empty()), (4, true));
        assert_eq!(many.iter().next_back(), Some(3));
    }
}
