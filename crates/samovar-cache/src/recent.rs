//! A table bounded in memory that keeps what is asked for.
//!
//! There are two tables: new entries and hits go into the young one; when that is full, the old one
//! is dropped and the young one becomes old. What is asked for stays, at no cost of bookkeeping.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// The table. `S` hashes its keys.
#[derive(Debug)]
pub(crate) struct Recent<K, V, S> {
    young: HashMap<K, V, S>,
    /// Bytes of `young`.
    young_len: usize,
    old: HashMap<K, V, S>,
    /// Bytes of `old`.
    old_len: usize,
    /// How many were dropped for others.
    eviction_count: u64,
}

// Derived, it would ask for defaults of keys and values.
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

/// How full something is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) entry_count: u64,
    pub(crate) len: u64,
    /// Dropped for others since the start.
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

/// How many bytes of memory an entry holds, its share of the table included.
pub(crate) trait MemoryLen {
    fn memory_len(&self) -> usize;
}

/// Hash parts are hashes already.
#[derive(Debug, Default)]
pub(crate) struct HashPartHasher(u64);

impl Hasher for HashPartHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The first byte chose the shard.
        for byte in bytes.iter().skip(1).take(8) {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_usize(&mut self, _: usize) {
        // The length that comes before an array's bytes says nothing.
    }
}

impl<K, V, S> Recent<K, V, S>
where
    K: Copy + Eq + Hash,
    V: Clone + MemoryLen,
    S: BuildHasher + Default,
{
    /// The entry of `key`. `memory_len_max`: what both tables may hold, in bytes.
    pub(crate) fn find(&mut self, key: &K, memory_len_max: usize) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.get(key)?.clone();
        self.insert(*key, value.clone(), memory_len_max);
        Some(value)
    }

    /// The entry of `key`, which is not asked for: it stays where it is.
    pub(crate) fn peek(&self, key: &K) -> Option<V> {
        self.young.get(key).or_else(|| self.old.get(key)).cloned()
    }

    /// The same, to be changed in what does not change its length.
    pub(crate) fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        let young = self.young.get_mut(key);
        young.or_else(|| self.old.get_mut(key))
    }

    /// Adds an entry, in place of another with this key. Larger ones than half of `memory_len_max`
    /// are for the caller to refuse: all others together never hold more than it says.
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

    /// Whether [`offer`](Self::offer) would take an entry of this key, if it were small.
    pub(crate) fn has_room(&self, key: &K, memory_len_max: usize) -> bool {
        self.old_len < memory_len_max / 2 || self.young.contains_key(key)
    }

    /// Adds an entry that nobody has asked for, or renews the one with this key where it is.
    /// `false` if it had to take the place of others: then nothing is added.
    pub(crate) fn offer(&mut self, key: K, value: V, memory_len_max: usize) -> bool {
        let value_len = value.memory_len();
        if let Some(known) = self.young.get_mut(&key) {
            self.young_len = self.young_len - known.memory_len() + value_len;
            *known = value;
            return true;
        }
        self.remove_old(&key);
        let has_room = self.old_len + value_len <= memory_len_max / 2;
        if has_room {
            self.old_len += value_len;
            self.old.insert(key, value);
        }
        has_room
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

    /// As long as the number says.
    impl MemoryLen for usize {
        fn memory_len(&self) -> usize {
            *self
        }
    }

    type Table = Recent<u32, usize, RandomState>;

    const MAX: usize = 100;

    #[test]
    fn an_offer_takes_free_room_alone() {
        let mut table = Table::default();
        for key in 0..5 {
            assert!(table.has_room(&key, MAX));
            assert!(table.offer(key, 10, MAX));
        }
        assert!(!table.has_room(&5, MAX));
        assert!(!table.offer(5, 1, MAX));
        assert_eq!(table.peek(&5), None);
        // What is asked for moves on, and leaves room.
        assert_eq!(table.find(&0, MAX), Some(10));
        assert!(table.offer(5, 10, MAX));
        assert_eq!(table.values().sum::<usize>(), 60);
    }

    #[test]
    fn an_offer_renews_what_is_there_where_it_is() {
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
    fn what_was_asked_for_is_never_dropped_for_an_offer() {
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
