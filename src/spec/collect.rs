//! Lists that are sorted without a sort of their own: the standard library's is 4 KiB of code for each type and closure that it is
//! called with. And maps and sets at the end of a chain, whose types are known by the name of the call.

use std::cmp::Ordering;

use super::collections::{BTreeMap, BTreeSet};

/// `sort_by` and `sort_by_key` for lists of which speed is not asked.
pub trait Order<T> {
    /// Sorts, and leaves what is equal in its order.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts by a key, and leaves what is equal in its order.
    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);

    /// The same for a key that takes time: it is asked for once for each.
    fn order_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> Order<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let order = order(self.len(), &mut |one, other| compare(&self[one], &self[other]));
        rearrange(order, &mut |one, other| self.swap(one, other));
    }

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }

    fn order_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        let keys: Vec<K> = self.iter().map(key).collect();
        let order = order(keys.len(), &mut |one, other| keys[one].cmp(&keys[other]));
        rearrange(order, &mut |one, other| self.swap(one, other));
    }
}

/// Brings items to their places by exchanges.
fn rearrange(mut order: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    // Each circle of places is gone round once; what was in its first one ends in its last one.
    for start in 0..order.len() {
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut order[place], place);
            if from == start || from == place {
                break;
            }
            swap(place, from);
            place = from;
        }
    }
}

/// Which item comes to each place.
fn order(count: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|one, other| compare(*one, *other));
    order
}

/// `into_map`, for iterators of pairs.
pub trait IntoMap<K, V>: Iterator<Item = (K, V)> + Sized {
    /// The pairs as a map; of equal keys the last one counts.
    fn into_map(self) -> BTreeMap<K, V>
    where
        K: Ord,
    {
        self.collect()
    }
}

impl<K, V, I: Iterator<Item = (K, V)>> IntoMap<K, V> for I {}

/// `into_set`, for iterators.
pub trait IntoSet<T>: Iterator<Item = T> + Sized {
    /// The items as a set.
    fn into_set(self) -> BTreeSet<T>
    where
        T: Ord,
    {
        self.collect()
    }
}

impl<T, I: Iterator<Item = T>> IntoSet<T> for I {}

/// `try_into_map`, for iterators of pairs that may be wrong.
pub trait TryIntoMap<K, V, E>: Iterator<Item = Result<(K, V), E>> + Sized {
    /// The pairs as a map; of equal keys the last one counts.
    ///
    /// # Errors
    /// The first one.
    fn try_into_map(mut self) -> Result<BTreeMap<K, V>, E>
    where
        K: Ord,
    {
        self.try_fold(BTreeMap::new(), |mut map, pair| {
            let (key, value) = pair?;
            map.insert(key, value);
            Ok(map)
        })
    }
}

impl<K, V, E, I: Iterator<Item = Result<(K, V), E>>> TryIntoMap<K, V, E> for I {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ordered_as_by_sort() {
        let mut state = 7u32;
        for count in 0..200 {
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 28
            };
            let items: Vec<(u32, usize)> = (0..count).map(|n| (random(), n)).collect();
            let (mut ours, mut theirs) = (items.clone(), items);
            ours.order_by_key(|item| item.0);
            theirs.sort_by_key(|item| item.0);
            assert_eq!(ours, theirs);
            ours.order_by(|one, other| other.1.cmp(&one.1));
            assert!(ours.is_sorted_by_key(|item| std::cmp::Reverse(item.1)));
            ours.order_by_cached_key(|item| item.1);
            ours.order_by_cached_key(|item| item.0);
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts_and_the_first_error() {
        let pairs = [("b", 1), ("a", 2), ("b", 3)];
        assert_eq!(pairs.into_iter().into_map(), BTreeMap::from([("a", 2), ("b", 3)]));
        let all = [Ok(("b", 1)), Err("one"), Err("two")];
        assert_eq!(all[..1].iter().copied().try_into_map(), Ok(BTreeMap::from([("b", 1)])));
        assert_eq!(all.into_iter().try_into_map(), Err("one"));
    }
}
