//! A cache bounded in memory that evicts entries not used recently.
//!
//! It has two tables. New entries and hits go into the young one; when that is full, the old one is
//! dropped and the young one becomes old. Used entries stay, without bookkeeping for each use.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// The cache. `S` hashes its keys.
#[derive(Debug)]
pub(crate) struct Recent<K, V, S> {
    young: HashMap<K, V, S>,
    /// Bytes of `young`.
    young_len: usize,
    old: HashMap<K, V, S>,
    /// Bytes of `old`.
    old_len: usize,
    /// Entries dropped in favour of others.
    eviction_count: u64,
}

// A derived one would require defaults of keys and values.
impl<K, V, S: Default> Default for Recent<K, V, S> {
    fn default() -> Self {
        Self {
            young: HashMap::default(),
            young_len: 0,
            old: HashMap::default(),
            old_len: 0,
            eviction_count: 0,
        }
    }
}

/// The contents of a cache in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) entry_count: u64,
    /// Memory, in bytes.
    pub(crate) len: u64,
    /// Since the start.
    pub(crate) eviction_count: u64,
}

impl Fill {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            entry_count: self.entry_count + other.entry_count,
            len: self.len + other.len,
            eviction_count: self.eviction_count + other.eviction_count,
        }
    }
}

/// The memory of an entry.
pub(crate) trait MemoryLen {
    /// In bytes, its share of the table included.
    fn memory_len(&self) -> usize;
}

impl<K, V, S> Recent<K, V, S>
where
    K: Copy + Eq + Hash,
    V: Clone + MemoryLen,
    S: BuildHasher + Default,
{
    /// The entry of `key`, which counts as a use. `memory_len_max`: the capacity of both tables,
    /// in bytes.
    pub(crate) fn find(&mut self, key: &K, memory_len_max: usize) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.get(key)?.clone();
        self.insert(*key, value.clone(), memory_len_max);
        Some(value)
    }

    /// The entry of `key`, without counting a use.
    pub(crate) fn peek(&self, key: &K) -> Option<V> {
        self.young.get(key).or_else(|| self.old.get(key)).cloned()
    }

    /// As [`peek`](Self::peek). The length of the entry must not change.
    pub(crate) fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        let young = self.young.get_mut(key);
        young.or_else(|| self.old.get_mut(key))
    }

    /// Adds or replaces an entry. The caller refuses entries longer than half of `memory_len_max`,
    /// which makes it the limit of all together.
    pub(crate) fn insert(&mut self, key: K, value: V, memory_len_max: usize) {
        self.remove(&key);
        let len = value.memory_len();
        if self.young_len + len > memory_len_max / 2 {
            self.eviction_count += self.old.len() as u64;
            self.old = std::mem::take(&mut self.young);
            self.old_len = std::mem::take(&mut self.young_len);
        }
        self.young_len += len;
        self.young.insert(key, value);
    }

    /// Whether [`offer`](Self::offer) would take a small entry of this key.
    pub(crate) fn has_capacity(&self, key: &K, memory_len_max: usize) -> bool {
        self.old_len < memory_len_max / 2 || self.young.contains_key(key)
    }

    /// Adds an entry without counting a use, or replaces it where it is. Returns `false`, and adds
    /// nothing, if others would be evicted for it.
    pub(crate) fn offer(&mut self, key: K, value: V, memory_len_max: usize) -> bool {
        let value_len = value.memory_len();
        if let Some(known) = self.young.get_mut(&key) {
            self.young_len = self.young_len - known.memory_len() + value_len;
            *known = value;
            return true;
        }
        self.remove_old(&key);
        let has_capacity = self.old_len + value_len <= memory_len_max / 2;
        if has_capacity {
            self.old_len += value_len;
            self.old.insert(key, value);
        }
        has_capacity
    }

    /// Drops the entry of `key`.
    pub(crate) fn remove(&mut self, key: &K) {
        self.remove_old(key);
        if let Some(value) = self.young.remove(key) {
            self.young_len -= value.memory_len();
        }
    }

    fn remove_old(&mut self, key: &K) {
        if let Some(value) = self.old.remove(key) {
            self.old_len -= value.memory_len();
        }
    }

    pub(crate) fn fill(&self) -> Fill {
        Fill {
            entry_count: (self.young.len() + self.old.len()) as u64,
            len: (self.young_len + self.old_len) as u64,
            eviction_count: self.eviction_count,
        }
    }

    /// All entries, for tests of the bound.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.young.values().chain(self.old.values())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use super::*;

    /// The number is the length.
    impl MemoryLen for usize {
        fn memory_len(&self) -> usize {
            *self
        }
    }

    type Table = Recent<u32, usize, RandomState>;

    const MAX: usize = 100;

    #[test]
    fn an_offer_takes_only_free_capacity() {
        let mut table = Table::default();
        for key in 0..5 {
            assert!(table.has_capacity(&key, MAX));
            assert!(table.offer(key, 10, MAX));
        }
        assert!(!table.has_capacity(&5, MAX));
        assert!(!table.offer(5, 1, MAX));
        assert_eq!(table.peek(&5), None);
        // A use moves the entry to the young table, and frees capacity in the old one.
        assert_eq!(table.find(&0, MAX), Some(10));
        assert!(table.offer(5, 10, MAX));
        assert_eq!(table.values().sum::<usize>(), 60);
    }

    #[test]
    fn an_offer_replaces_an_entry_in_place() {
        let mut table = Table::default();
        table.insert(1, 50, MAX);
        assert!(table.offer(2, 50, MAX));
        assert!(table.offer(1, 20, MAX) && table.offer(2, 30, MAX));
        assert_eq!((table.peek(&1), table.peek(&2)), (Some(20), Some(30)));
        assert_eq!((table.young_len, table.old_len), (20, 30));
        table.remove(&1);
        table.remove(&2);
        assert_eq!((table.young_len, table.old_len), (0, 0));
    }

    #[test]
    fn a_used_entry_is_never_evicted_for_an_offer() {
        let mut table = Table::default();
        for key in 0..5 {
            table.insert(key, 10, MAX);
        }
        for key in 100..1000 {
            table.offer(key, 7, MAX);
        }
        assert!((0..5).all(|key| table.peek(&key).is_some()));
    }
}
