//! Names of allocations: `<job>.<group>[<index>]`.

use crate::spec::IntoSet as _;
use crate::spec::collections::BTreeSet;

/// The name of number `index` of a group.
#[must_use]
pub fn name(job: &str, group: &str, index: u32) -> String {
    format!("{job}.{group}[{index}]")
}

/// The lowest numbers that are not taken.
pub(super) struct Free {
    taken: BTreeSet<u32>,
    next: u32,
}

impl Free {
    pub(super) fn new(taken: impl IntoIterator<Item = u32>) -> Free {
        Free { taken: taken.into_iter().into_set(), next: 0 }
    }

    pub(super) fn take(&mut self) -> u32 {
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_numbers_are_taken() {
        let mut free = Free::new([0, 2, 3, 7]);
        assert_eq!(std::array::from_fn(|_| free.take()), [1, 4, 5, 6, 8]);
        assert_eq!(name("a/b", "web", 3), "a/b.web[3]");
    }
}
