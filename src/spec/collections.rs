//! Sorted maps and sets in less code than those of the standard library, whose names and meaning they have: a `BTreeMap` of the
//! standard library is 3 to 5 KB of code for each pair of types, one of these about a third of that (docs/size.md).
//!
//! A map is a list of sorted lists of at most 128 entries, a B-tree of two levels. A key is found by two binary searches. A
//! new entry moves those behind it in its list, and one in 64 moves the lists behind that, too: 200,000 texts in the worst order
//! take 0.2 s, twice as long as there. Keys that come in order are appended.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// So many entries are moved together at most.
const CHUNK: usize = 128;

/// Which list, and which entry of it. Behind the last entry is the first one of a list that is not there.
type Place = (usize, usize);

/// Where a key is, or where it belongs, in lists of which none is empty.
fn locate(lists: usize, len: &dyn Fn(usize) -> usize, compare: &dyn Fn(Place) -> Ordering) -> Result<Place, Place> {
    if lists == 0 {
        return Err((0, 0));
    }
    let list = match search(1, lists, &|list| compare((list, 0))) {
        Ok(list) => return Ok((list, 0)),
        Err(behind) => behind - 1,
    };
    match search(0, len(list), &|entry| compare((list, entry))) {
        Ok(entry) => Ok((list, entry)),
        Err(entry) => Err((list, entry)),
    }
}

/// The number of `from..to` that is equal, or the first one that is greater.
fn search(mut from: usize, mut to: usize, compare: &dyn Fn(usize) -> Ordering) -> Result<usize, usize> {
    while from < to {
        let middle = usize::midpoint(from, to);
        match compare(middle) {
            Ordering::Less => from = middle + 1,
            Ordering::Equal => return Ok(middle),
            Ordering::Greater => to = middle,
        }
    }
    Err(from)
}

/// A map in the order of its keys.
#[derive(Clone)]
pub struct BTreeMap<K, V> {
    /// None is empty, none has more than [`CHUNK`].
    lists: Vec<Vec<(K, V)>>,
}

impl<K, V> BTreeMap<K, V> {
    /// An empty map.
    pub const fn new() -> BTreeMap<K, V> {
        BTreeMap { lists: Vec::new() }
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.lists.clear();
    }

    /// The entries in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { lists: &self.lists, from: (0, 0), to: (self.lists.len(), 0) }
    }

    /// The entries in order, with values to change.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        self.lists.iter_mut().flatten().map(|(key, value)| (&*key, value))
    }

    /// The entries in order whose keys lie within these bounds; none where the lower one lies behind the upper one.
    pub fn range<Q: Ord + ?Sized, R: RangeBounds<Q>>(&self, bounds: R) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        // The first entry at a key, or behind it.
        let first = |key: &Q, behind: bool| {
            let (list, entry) = match self.place(key) {
                Ok((list, entry)) => (list, entry + usize::from(behind)),
                Err(place) => place,
            };
            if self.lists.get(list).is_some_and(|entries| entry == entries.len()) {
                (list + 1, 0)
            } else {
                (list, entry)
            }
        };
        let from = match bounds.start_bound() {
            Bound::Included(key) => first(key, false),
            Bound::Excluded(key) => first(key, true),
            Bound::Unbounded => (0, 0),
        };
        let to = match bounds.end_bound() {
            Bound::Included(key) => first(key, true),
            Bound::Excluded(key) => first(key, false),
            Bound::Unbounded => (self.lists.len(), 0),
        };
        Iter { lists: &self.lists, from, to: to.max(from) }
    }

    /// The keys in order.
    pub fn keys(&self) -> Keys<'_, K, V> {
        Keys(self.iter())
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The values in the order of their keys, to change.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.lists.iter_mut().flatten().map(|(_, value)| value)
    }

    /// The keys alone.
    pub fn into_keys(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator {
        self.into_iter().map(|(key, _)| key)
    }

    /// The values alone.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.into_iter().map(|(_, value)| value)
    }

    /// The first entry.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The last entry.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }

    /// Takes the first entry out.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        (!self.is_empty()).then(|| self.take_out((0, 0)))
    }

    /// Drops the entries of which it is not said that they stay.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &mut V) -> bool) {
        self.lists.iter_mut().for_each(|list| list.retain_mut(|(key, value)| stays(key, value)));
        self.lists.retain(|list| !list.is_empty());
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<Place, Place>
    where
        K: Borrow<Q>,
    {
        let compare = |(list, entry): Place| self.lists[list][entry].0.borrow().cmp(key);
        locate(self.lists.len(), &|list| self.lists[list].len(), &compare)
    }

    /// Puts an entry where [`Self::place`] says that it belongs.
    fn put_in(&mut self, (mut list, mut entry): Place, key: K, value: V) -> &mut V {
        if self.lists.is_empty() {
            self.lists.push(Vec::new());
        } else if self.lists[list].len() == CHUNK {
            // Keys in order fill each list; others find room in the half where they belong.
            let at_the_end = entry == CHUNK && list + 1 == self.lists.len();
            let kept = if at_the_end { CHUNK } else { CHUNK / 2 };
            let behind = self.lists[list].split_off(kept);
            self.lists.insert(list + 1, behind);
            if entry >= kept {
                (list, entry) = (list + 1, entry - kept);
            }
        }
        let list = &mut self.lists[list];
        list.insert(entry, (key, value));
        &mut list[entry].1
    }

    fn take_out(&mut self, (list, entry): Place) -> (K, V) {
        let taken = self.lists[list].remove(entry);
        if self.lists[list].is_empty() {
            self.lists.remove(list);
        }
        taken
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// A key and its value.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (list, entry) = self.place(key).ok()?;
        let (key, value) = &self.lists[list][entry];
        Some((key, value))
    }

    /// The value of a key, to change.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (list, entry) = self.place(key).ok()?;
        Some(&mut self.lists[list][entry].1)
    }

    /// Whether it has a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Sets the value of a key, and returns the one that it had. A key that is there stays as it is.
    pub fn insert(&mut self, key: K, value: V) -> Option<V>
    where
        K: Ord,
    {
        match self.place(&key) {
            Ok((list, entry)) => Some(std::mem::replace(&mut self.lists[list][entry].1, value)),
            Err(place) => {
                self.put_in(place, key, value);
                None
            }
        }
    }

    /// Takes a key out, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Takes a key and its value out.
    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(self.take_out(place))
    }

    /// Takes out what is at this key and behind it.
    #[must_use]
    pub fn split_off<Q: Ord + ?Sized>(&mut self, key: &Q) -> BTreeMap<K, V>
    where
        K: Borrow<Q>,
    {
        let (Ok((list, entry)) | Err((list, entry))) = self.place(key);
        let mut lists = self.lists.split_off(self.lists.len().min(list + 1));
        let behind = self.lists.last_mut().map(|list| list.split_off(entry)).unwrap_or_default();
        lists.insert(0, behind);
        let mut split = BTreeMap { lists };
        self.lists.retain(|list| !list.is_empty());
        split.lists.retain(|list| !list.is_empty());
        split
    }

    /// The place of a key, to look whether it has a value and to give it one.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V>
    where
        K: Ord,
    {
        Entry { place: self.place(&key), map: self, key }
    }
}

/// The place of a key in a map.
pub struct Entry<'a, K, V> {
    map: &'a mut BTreeMap<K, V>,
    key: K,
    place: Result<Place, Place>,
}

impl<'a, K, V> Entry<'a, K, V> {
    /// Its value, which is made first if there is none.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        match self.place {
            Ok((list, entry)) => &mut self.map.lists[list][entry].1,
            Err(place) => self.map.put_in(place, self.key, make()),
        }
    }

    /// Its value, or this one if there is none.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// Its value, or that of its type if there is none.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

/// The entries of a map in order.
pub struct Iter<'a, K, V> {
    lists: &'a [Vec<(K, V)>],
    from: Place,
    to: Place,
}

/// The entries of a map in order, with values to change.
pub type IterMut<'a, K, V> =
    std::iter::Map<std::iter::Flatten<std::slice::IterMut<'a, Vec<(K, V)>>>, fn(&'a mut (K, V)) -> (&'a K, &'a mut V)>;

/// The keys of a map in order.
pub struct Keys<'a, K, V>(Iter<'a, K, V>);

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { ..*self }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.from == self.to {
            return None;
        }
        let (list, entry) = self.from;
        let entries = &self.lists[list];
        self.from = if entry + 1 == entries.len() { (list + 1, 0) } else { (list, entry + 1) };
        let (key, value) = &entries[entry];
        Some((key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let lists: usize = self.lists[self.from.0..self.to.0].iter().map(Vec::len).sum();
        let left = lists + self.to.1 - self.from.1;
        (left, Some(left))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.from == self.to {
            return None;
        }
        if self.to.1 == 0 {
            self.to = (self.to.0 - 1, self.lists[self.to.0 - 1].len());
        }
        self.to.1 -= 1;
        let (key, value) = &self.lists[self.to.0][self.to.1];
        Some((key, value))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<K, V> Clone for Keys<'_, K, V> {
    fn clone(&self) -> Self {
        Keys(self.0.clone())
    }
}

impl<'a, K, V> Iterator for Keys<'a, K, V> {
    type Item = &'a K;

    fn next(&mut self) -> Option<&'a K> {
        self.0.next().map(|(key, _)| key)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Keys<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(key, _)| key)
    }
}

impl<K, V> ExactSizeIterator for Keys<'_, K, V> {}

impl<K: fmt::Debug, V> fmt::Debug for Keys<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<K, V> Default for BTreeMap<K, V> {
    fn default() -> Self {
        BTreeMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for BTreeMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

// How the entries are distributed over lists depends on the order in which they came.
impl<K: PartialEq, V: PartialEq> PartialEq for BTreeMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other)
    }
}

impl<K: Eq, V: Eq> Eq for BTreeMap<K, V> {}

impl<K: PartialOrd, V: PartialOrd> PartialOrd for BTreeMap<K, V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.iter().partial_cmp(other)
    }
}

impl<K: Ord, V: Ord> Ord for BTreeMap<K, V> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other)
    }
}

impl<K: Hash, V: Hash> Hash for BTreeMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<K: Borrow<Q>, Q: Ord + ?Sized, V> std::ops::Index<&Q> for BTreeMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is in the map")
    }
}

impl<K: Ord, V> Extend<(K, V)> for BTreeMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for BTreeMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = BTreeMap::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for BTreeMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K, V> IntoIterator for BTreeMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        let mut lists = self.lists.into_iter();
        let mut all = lists.next().unwrap_or_default();
        lists.for_each(|mut list| all.append(&mut list));
        all.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a BTreeMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut BTreeMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<K: Serialize, V: Serialize> Serialize for BTreeMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for BTreeMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = BTreeMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry()? {
                    map.insert(key, value);
                }
                Ok(map)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A set in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BTreeSet<T>(BTreeMap<T, ()>);

/// The items of a set, taken out of it.
pub type IntoItems<T> = std::iter::Map<std::vec::IntoIter<(T, ())>, fn((T, ())) -> T>;

impl<T> BTreeSet<T> {
    /// An empty set.
    pub const fn new() -> BTreeSet<T> {
        BTreeSet(BTreeMap::new())
    }

    /// How many items it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all items.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The items in order.
    pub fn iter(&self) -> Keys<'_, T, ()> {
        self.0.keys()
    }

    /// The first item.
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }

    /// Takes the first item out.
    pub fn pop_first(&mut self) -> Option<T> {
        self.0.pop_first().map(|(item, ())| item)
    }

    /// Drops the items of which it is not said that they stay.
    pub fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.0.retain(|item, ()| stays(item));
    }

    /// Whether it has an item.
    pub fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.contains_key(item)
    }

    /// The item that is equal to this one.
    pub fn get<Q: Ord + ?Sized>(&self, item: &Q) -> Option<&T>
    where
        T: Borrow<Q>,
    {
        self.0.get_key_value(item).map(|(item, ())| item)
    }

    /// Puts an item in, and says whether it is new. One that is there stays as it is.
    pub fn insert(&mut self, item: T) -> bool
    where
        T: Ord,
    {
        self.0.insert(item, ()).is_none()
    }

    /// Takes an item out, and says whether it was there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.remove(item).is_some()
    }

    /// What this one has and the other one has not, in order.
    pub fn difference<'a>(&'a self, other: &'a BTreeSet<T>) -> impl Iterator<Item = &'a T>
    where
        T: Ord,
    {
        self.iter().filter(|item| !other.contains(*item))
    }

    /// What both have, in order.
    pub fn intersection<'a>(&'a self, other: &'a BTreeSet<T>) -> impl Iterator<Item = &'a T>
    where
        T: Ord,
    {
        self.iter().filter(|item| other.contains(*item))
    }

    /// Whether the other one has all that this one has.
    pub fn is_subset(&self, other: &BTreeSet<T>) -> bool
    where
        T: Ord,
    {
        self.iter().all(|item| other.contains(item))
    }

    /// Whether the other one has nothing that this one has.
    pub fn is_disjoint(&self, other: &BTreeSet<T>) -> bool
    where
        T: Ord,
    {
        !self.iter().any(|item| other.contains(item))
    }
}

impl<T> Default for BTreeSet<T> {
    fn default() -> Self {
        BTreeSet::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for BTreeSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl<T: Ord> Extend<T> for BTreeSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<T: Ord> FromIterator<T> for BTreeSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = BTreeSet::new();
        set.extend(items);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for BTreeSet<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T> IntoIterator for BTreeSet<T> {
    type Item = T;
    type IntoIter = IntoItems<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(item, ())| item)
    }
}

impl<'a, T> IntoIterator for &'a BTreeSet<T> {
    type Item = &'a T;
    type IntoIter = Keys<'a, T, ()>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Serialize> Serialize for BTreeSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de> + Ord> Deserialize<'de> for BTreeSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for Items<T> {
            type Value = BTreeSet<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut set = BTreeSet::new();
                while let Some(item) = items.next_element()? {
                    set.insert(item);
                }
                Ok(set)
            }
        }

        deserializer.deserialize_seq(Items(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use std::collections;

    use proptest::prelude::*;

    use super::*;

    /// What is done to both maps; the keys are few, so that they meet.
    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u8),
        Entry(u16, u8),
        Change(u16, u8),
        Remove(u16),
        PopFirst,
        Retain(u16),
        SplitOff(u16),
        Extend(Vec<(u16, u8)>),
        Rebuild,
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || 0..2000_u16;
        prop_oneof![
            20 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Insert(key, value)),
            5 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Entry(key, value)),
            5 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Change(key, value)),
            20 => key().prop_map(Step::Remove),
            5 => Just(Step::PopFirst),
            1 => (1..9_u16).prop_map(Step::Retain),
            1 => key().prop_map(Step::SplitOff),
            3 => prop::collection::vec((key(), any::<u8>()), 0..400).prop_map(Step::Extend),
            1 => (key(), 0..500_u16).prop_map(|(from, count)| Step::Extend((from..from + count).map(|key| (key, 0)).collect())),
            1 => Just(Step::Rebuild),
        ]
    }

    /// All that can be asked, of both.
    fn compare(ours: &BTreeMap<u16, u8>, theirs: &collections::BTreeMap<u16, u8>) {
        assert!(ours.lists.iter().all(|list| (1..=CHUNK).contains(&list.len())), "{:?}", ours.lists);
        assert_eq!((ours.len(), ours.is_empty()), (theirs.len(), theirs.is_empty()));
        assert!(ours.iter().eq(theirs) && ours.iter().rev().eq(theirs.iter().rev()));
        assert!(ours.keys().eq(theirs.keys()) && ours.keys().rev().eq(theirs.keys().rev()));
        assert!(ours.values().eq(theirs.values()));
        assert_eq!(ours.first_key_value(), theirs.first_key_value());
        assert_eq!(ours.last_key_value(), theirs.last_key_value());
        let (mut half, mut their_half) = (ours.iter(), theirs.iter());
        for _ in 0..ours.len() / 2 {
            assert_eq!(half.len(), their_half.len());
            assert_eq!((half.next(), half.next_back()), (their_half.next(), their_half.next_back()));
        }
        assert!(half.clone().eq(their_half));
        for key in (0..2600).step_by(61) {
            for end in [key, key + 1, key + 9, key + 700] {
                assert!(ours.range(key..end).eq(theirs.range(key..end)));
                assert!(ours.range(key..=end).rev().eq(theirs.range(key..=end).rev()));
                let bounds = (Bound::Excluded(key), Bound::Included(end.max(key + 1)));
                assert!(ours.range(bounds).eq(theirs.range(bounds)));
                assert_eq!(ours.range(key..end).len(), theirs.range(key..end).count());
            }
            assert!(ours.range(..key).eq(theirs.range(..key)) && ours.range(key..).eq(theirs.range(key..)));
            assert_eq!(ours.get_key_value(&key), theirs.get_key_value(&key));
            assert_eq!(ours.contains_key(&key), theirs.contains_key(&key));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_map_is_as_one_of_the_standard_library(steps in prop::collection::vec(step(), 0..300)) {
            let (mut ours, mut theirs) = (BTreeMap::new(), collections::BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, value) => assert_eq!(ours.insert(key, value), theirs.insert(key, value)),
                    Step::Entry(key, value) => {
                        assert_eq!(ours.entry(key).or_insert(value), theirs.entry(key).or_insert(value));
                        *ours.entry(key).or_default() ^= 1;
                        *theirs.entry(key).or_default() ^= 1;
                    }
                    Step::Change(key, value) => {
                        if let Some(known) = ours.get_mut(&key) {
                            *known = value;
                        }
                        theirs.entry(key).and_modify(|known| *known = value);
                        ours.iter_mut().filter(|(at, _)| **at > key).for_each(|(_, value)| *value ^= 3);
                        theirs.iter_mut().filter(|(at, _)| **at > key).for_each(|(_, value)| *value ^= 3);
                    }
                    Step::Remove(key) => assert_eq!(ours.remove_entry(&key), theirs.remove_entry(&key)),
                    Step::PopFirst => assert_eq!(ours.pop_first(), theirs.pop_first()),
                    Step::Retain(of) => {
                        ours.retain(|key, _| !key.is_multiple_of(of));
                        theirs.retain(|key, _| !key.is_multiple_of(of));
                    }
                    Step::SplitOff(key) => {
                        let (behind, their_behind) = (ours.split_off(&key), theirs.split_off(&key));
                        compare(&behind, &their_behind);
                        compare(&ours, &theirs);
                        if key % 2 == 0 {
                            (ours, theirs) = (behind, their_behind);
                        }
                    }
                    Step::Extend(entries) => {
                        ours.extend(entries.iter().copied());
                        theirs.extend(entries);
                    }
                    Step::Rebuild => {
                        ours = ours.into_iter().rev().collect();
                        assert_eq!(ours.clone().into_values().rev().collect::<Vec<_>>(), theirs.values().rev().copied().collect::<Vec<_>>());
                    }
                }
                assert_eq!(ours.len(), theirs.len());
            }
            compare(&ours, &theirs);
            assert_eq!(format!("{ours:?} {ours:#?}"), format!("{theirs:?} {theirs:#?}"));
            assert_eq!(serde_json::to_string(&ours).unwrap(), serde_json::to_string(&theirs).unwrap());
        }

        #[test]
        fn sets_are_as_those_of_the_standard_library(
            one in prop::collection::vec(0..600_u16, 0..500),
            other in prop::collection::vec(0..600_u16, 0..500),
        ) {
            let (ours, ours_too): (BTreeSet<_>, BTreeSet<_>) = (one.iter().copied().collect(), other.iter().copied().collect());
            let (theirs, theirs_too): (collections::BTreeSet<_>, collections::BTreeSet<_>) =
                (one.into_iter().collect(), other.into_iter().collect());
            assert!(ours.iter().eq(&theirs) && ours.clone().into_iter().eq(theirs.clone()));
            assert!(ours.difference(&ours_too).eq(theirs.difference(&theirs_too)));
            assert!(ours.intersection(&ours_too).eq(theirs.intersection(&theirs_too)));
            assert_eq!(ours.is_subset(&ours_too), theirs.is_subset(&theirs_too));
            assert_eq!(ours.is_disjoint(&ours_too), theirs.is_disjoint(&theirs_too));
            assert_eq!(ours.cmp(&ours_too), theirs.cmp(&theirs_too));
            assert_eq!((ours.first(), ours.last()), (theirs.first(), theirs.last()));
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
    }

    /// The same entries, in lists that came to be in another order.
    #[test]
    fn equal_maps_are_equal_however_they_were_made() {
        let hash = |map: &BTreeMap<u32, u32>| {
            let mut hasher = std::hash::DefaultHasher::new();
            map.hash(&mut hasher);
            hasher.finish()
        };
        let forth: BTreeMap<u32, u32> = (0..1000).map(|key| (key, key)).collect();
        let back: BTreeMap<u32, u32> = (0..1000).rev().map(|key| (key, key)).collect();
        assert_ne!(forth.lists.len(), back.lists.len());
        assert_eq!((&forth, hash(&forth), forth.cmp(&back)), (&back, hash(&back), Ordering::Equal));
        let mut other = back;
        other.insert(7, 8);
        assert_eq!((forth == other, forth.cmp(&other)), (false, Ordering::Less));
    }

    #[test]
    fn a_key_that_is_there_stays_and_of_equal_keys_the_last_value_counts() {
        #[derive(Debug, Clone, Copy)]
        struct Key(u8, &'static str);
        impl PartialEq for Key {
            fn eq(&self, other: &Key) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for Key {}
        impl PartialOrd for Key {
            fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for Key {
            fn cmp(&self, other: &Key) -> Ordering {
                self.0.cmp(&other.0)
            }
        }
        let map: BTreeMap<Key, u8> = [(Key(1, "first"), 1), (Key(0, "other"), 2), (Key(1, "second"), 3)].into();
        let (key, value) = map.last_key_value().unwrap();
        assert_eq!((map.len(), key.1, *value), (2, "first", 3));
        let set: BTreeSet<Key> = map.into_keys().chain([Key(1, "third")]).collect();
        assert_eq!((set.len(), set.get(&Key(1, "any")).unwrap().1), (2, "first"));
    }

    #[test]
    fn what_serde_reads_is_what_the_standard_library_reads() {
        for text in [r#"{"b": 1, "a": 2, "b": 3}"#, "{}", r#"{"a": "x"}"#, "[1]", "7"] {
            let ours = serde_json::from_str::<BTreeMap<String, u8>>(text).map(|map| format!("{map:?}"));
            let theirs = serde_json::from_str::<collections::BTreeMap<String, u8>>(text).map(|map| format!("{map:?}"));
            assert_eq!(ours.map_err(|e| e.to_string()), theirs.map_err(|e| e.to_string()));
        }
        for text in ["[3, 1, 3, 2]", "[]", r#"["x"]"#, "{}", "7"] {
            let ours = serde_json::from_str::<BTreeSet<u8>>(text).map(|set| format!("{set:?}"));
            let theirs = serde_json::from_str::<collections::BTreeSet<u8>>(text).map(|set| format!("{set:?}"));
            assert_eq!(ours.map_err(|e| e.to_string()), theirs.map_err(|e| e.to_string()));
        }
    }

    /// Keys in the worst order move few entries each. With one list it would be a terabyte of copies.
    #[test]
    fn keys_in_the_worst_order_are_no_attack() {
        let count = 200_000_u32;
        let mut map: BTreeMap<u32, [u64; 6]> = (0..count).rev().map(|key| (key, [0; 6])).collect();
        assert!(map.lists.len() < count as usize / (CHUNK / 2) + 2, "{}", map.lists.len());
        let forth: BTreeMap<u32, ()> = (0..count).map(|key| (key, ())).collect();
        assert_eq!(forth.lists.len(), (count as usize).div_ceil(CHUNK), "keys in order fill their lists");
        let mut taken = 0;
        while map.pop_first().is_some() {
            taken += 1;
        }
        assert_eq!((taken, map.is_empty()), (count, true));
    }
}
