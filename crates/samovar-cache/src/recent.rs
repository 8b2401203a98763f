//! A table bounded in memory that keeps what is asked for.
//!
//! There are two tables: new entries and hits go into the young one; when that is full, the old one
//! is dropped and the young one becomes old. What is asked for stays, at no cost of bookkeeping.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// The table. `S` hashes its keys.
#[derive(Debug)]
pub(crate) struct Recent<K, V, S> {
    young: HashMap<K, V, S>,
    /// Bytes of `young`.
    young_len: usize,
    old: HashMap<K, V, S>,
}

// Derived, it would ask for defaults of keys and values.
impl<K, V, S: Default> Default for Recent<K, V, S> {
    fn default() -> Self {
        Self {
            young: HashMap::default(),
            young_len: 0,
            old: HashMap::default(),
        }
    }
}

/// How many bytes of memory an entry holds, its share of the table included.
pub(crate) trait MemoryLen {
    fn memory_len(&self) -> usize;
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

    /// Adds an entry, in place of another with this key.
    pub(crate) fn insert(&mut self, key: K, value: V, memory_len_max: usize) {
        self.old.remove(&key);
        self.young_len += value.memory_len();
        if let Some(replaced) = self.young.insert(key, value) {
            self.young_len -= replaced.memory_len();
        }
        if self.young_len > memory_len_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_len = 0;
        }
    }

    /// Drops the entry of `key`.
    pub(crate) fn remove(&mut self, key: &K) {
        self.old.remove(key);
        if let Some(value) = self.young.remove(key) {
            self.young_len -= value.memory_len();
        }
    }

    /// All entries, for tests of the bound.
    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.young.values().chain(self.old.values())
    }
}
