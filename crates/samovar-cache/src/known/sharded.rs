//! A cache of store paths, bounded in memory and shared by all threads.
//!
//! Sharding reduces lock contention: an I/O thread holds the lock of one shard for one look-up in a
//! hash table.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use samovar_nix::HashPart;

use crate::known::recent::{Fill, MemoryLen, Recent};

/// [`Recent`] entries of paths, in shards.
#[derive(Debug)]
pub(crate) struct Sharded<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    /// Memory of one shard, in bytes.
    shard_len_max: usize,
}

type Shard<V> = Recent<HashPart, V, BuildHasherDefault<HashPartHasher>>;

/// A cache whose entry for a path can be dropped.
pub(crate) trait PathCache: fmt::Debug + Send + Sync {
    /// Drops the entry of a path.
    fn drop_path(&self, hash_part: &HashPart);
}

impl<V: Clone + MemoryLen> Sharded<V> {
    /// `memory_len`: the capacity of all shards, in bytes.
    pub(crate) fn new(shard_count: usize, memory_len: usize) -> Self {
        Self {
            shards: (0..shard_count).map(|_| Mutex::default()).collect(),
            shard_len_max: memory_len / shard_count,
        }
    }

    /// The entry of a path, which counts as a use.
    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<V> {
        self.shard(hash_part).find(hash_part, self.shard_len_max)
    }

    /// The entry of a path, without counting a use.
    pub(crate) fn peek(&self, hash_part: &HashPart) -> Option<V> {
        self.shard(hash_part).peek(hash_part)
    }

    /// Changes the entry of a path, but not its length, without counting a use.
    pub(crate) fn update(&self, hash_part: &HashPart, change: impl FnOnce(&mut V)) {
        if let Some(entry) = self.shard(hash_part).peek_mut(hash_part) {
            change(entry);
        }
    }

    /// Adds an entry, or drops the path's entry if this one is too long to leave capacity for
    /// others. Returns whether the path had no entry.
    pub(crate) fn insert(&self, hash_part: HashPart, value: V) -> bool {
        let fits = self.fits(&value);
        let mut shard = self.shard(&hash_part);
        let is_new = shard.peek(&hash_part).is_none();
        if fits {
            shard.insert(hash_part, value, self.shard_len_max);
        } else {
            shard.remove(&hash_part);
        }
        is_new
    }

    /// Whether [`offer`](Self::offer) would accept a small entry for this path.
    pub(crate) fn has_capacity(&self, hash_part: &HashPart) -> bool {
        self.shard(hash_part)
            .has_capacity(hash_part, self.shard_len_max)
    }

    /// Adds an entry if no other is evicted for it. Returns whether it was added.
    pub(crate) fn offer(&self, hash_part: HashPart, value: V) -> bool {
        self.fits(&value)
            && self
                .shard(&hash_part)
                .offer(hash_part, value, self.shard_len_max)
    }

    pub(crate) fn remove(&self, hash_part: &HashPart) {
        self.shard(hash_part).remove(hash_part);
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *lock(shard) = Shard::default();
        }
    }

    pub(crate) fn fill(&self) -> Fill {
        let fills = self.shards.iter().map(|shard| lock(shard).fill());
        fills.fold(Fill::default(), Fill::and)
    }

    /// Whether the cache was created with this capacity.
    pub(crate) fn has_memory_len(&self, memory_len: usize) -> bool {
        self.shard_len_max == memory_len / self.shards.len()
    }

    /// The capacity of all shards, in bytes.
    pub(crate) fn len_max(&self) -> u64 {
        (self.shard_len_max * self.shards.len()) as u64
    }

    /// Whether the entry is small enough to leave capacity for others: see [`Recent::insert`].
    fn fits(&self, value: &V) -> bool {
        value.memory_len() <= self.shard_len_max / 2
    }

    fn shard(&self, hash_part: &HashPart) -> MutexGuard<'_, Shard<V>> {
        let index = usize::from(hash_part.as_bytes()[0]) % self.shards.len();
        lock(&self.shards[index])
    }
}

impl<V> PathCache for Sharded<V>
where
    V: Clone + MemoryLen + fmt::Debug + Send,
{
    fn drop_path(&self, hash_part: &HashPart) {
        self.remove(hash_part);
    }
}

fn lock<V>(shard: &Mutex<Shard<V>>) -> MutexGuard<'_, Shard<V>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hashes hash parts, which are hashes already.
#[derive(Debug, Default)]
pub(crate) struct HashPartHasher(u64);

impl Hasher for HashPartHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The first byte selected the shard.
        for byte in bytes.iter().skip(1).take(8) {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_usize(&mut self, _: usize) {
        // The length that precedes the bytes of an array is the same for all.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD_COUNT: usize = 16;

    fn hash_part(number: u32) -> HashPart {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4] = 1;
        HashPart::from_bytes(bytes)
    }

    fn memory_len(cache: &Sharded<usize>) -> usize {
        let len = |shard: &Mutex<Shard<usize>>| lock(shard).values().sum::<usize>();
        cache.shards.iter().map(len).sum()
    }

    /// The narinfo of a path with thousands of references may be that long.
    #[test]
    fn an_entry_longer_than_half_a_shard_is_not_kept() {
        let cache = Sharded::<usize>::new(SHARD_COUNT, SHARD_COUNT * 20_000);
        let part = hash_part(7);
        assert!(cache.insert(part, 10_000));
        assert_eq!(cache.find(&part), Some(10_000));
        assert!(!cache.offer(part, 10_001));
        assert!(!cache.insert(part, 10_001));
        assert_eq!(cache.find(&part), None);
    }

    #[test]
    fn memory_is_bounded_and_used_entries_stay() {
        let capacity = 1 << 20;
        let cache = Sharded::<usize>::new(SHARD_COUNT, capacity);
        let favourite = hash_part(7);
        cache.insert(favourite, 500);
        for number in 100..50_000 {
            cache.insert(hash_part(number), 500);
            assert!(cache.find(&favourite).is_some());
        }
        let len = memory_len(&cache);
        assert!(len <= capacity && len >= capacity / 4, "{len}");
        assert_eq!(cache.fill().len, len as u64);
        cache.drop_path(&favourite);
        assert_eq!(cache.find(&favourite), None);
        cache.clear();
        assert_eq!(cache.fill(), Fill::default());
    }

    #[test]
    fn an_update_is_no_use() {
        let cache = Sharded::<usize>::new(1, 100);
        cache.insert(hash_part(1), 50);
        cache.insert(hash_part(2), 50);
        cache.update(&hash_part(1), |value| *value = 49);
        assert_eq!(cache.peek(&hash_part(1)), Some(49));
        cache.insert(hash_part(3), 50);
        assert_eq!(cache.peek(&hash_part(1)), None);
        cache.update(&hash_part(1), |_| panic!("there is no such entry"));
    }
}
