//! A table of facts about paths, bounded in memory and shared by all threads.
//!
//! Entries that were not used recently are evicted. New entries and hits go into the young
//! generation; when that is full, the old generation is dropped and the young one becomes the old
//! one. So used entries stay in memory, without a list that every use would have to update.
//! Sharding reduces lock contention: an I/O thread locks one shard for one look-up in a hash table.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use samovar_metrics::CacheStatus;
use samovar_nix::HashPart;

use crate::sync::Locked;

/// A bounded table with one entry per path, divided into shards.
#[derive(Debug)]
pub(crate) struct Sharded<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    /// Maximum memory that one shard may use, in bytes.
    shard_len_max: usize,
    /// Number of misses: entries that were added for paths without an entry.
    miss_count: AtomicU64,
    /// Number of evictions, also from tables that this one replaced at reloads.
    eviction_count: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Shard<V> {
    young: Generation<V>,
    old: Generation<V>,
}

#[derive(Debug)]
struct Generation<V> {
    entries: HashMap<HashPart, V, BuildHasherDefault<HashPartHasher>>,
    /// Memory that the entries use, in bytes.
    len: usize,
}

/// An entry that can report how much memory it uses.
pub(crate) trait MemoryLen {
    /// Returns the memory of the entry in bytes, including its share of the table.
    fn memory_len(&self) -> usize;
}

/// A table whose entry for a path can be dropped.
pub(crate) trait PathCache: fmt::Debug + Send + Sync {
    /// Drops the entry of a path.
    fn drop_path(&self, hash_part: &HashPart);
}

impl<V: Clone + MemoryLen> Sharded<V> {
    /// Creates an empty table. `memory_len` is the capacity of all shards, in bytes;
    /// `eviction_count` is the counter of the table that this one replaces, or a new one.
    pub(crate) fn new(
        shard_count: usize,
        memory_len: usize,
        eviction_count: Arc<AtomicU64>,
    ) -> Self {
        Self {
            shards: (0..shard_count).map(|_| Mutex::default()).collect(),
            shard_len_max: memory_len / shard_count,
            miss_count: AtomicU64::new(0),
            eviction_count,
        }
    }

    /// Returns the entry of a path, if it has one, and counts this as a use.
    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<V> {
        // Declared before the guard, so that evicted entries are freed without the lock.
        let _evicted;
        let mut shard = self.shard(hash_part);
        if let Some(value) = shard.young.entries.get(hash_part) {
            return Some(value.clone());
        }
        let value = shard.old.remove(hash_part)?;
        _evicted = self.insert_young(&mut shard, *hash_part, value.clone());
        Some(value)
    }

    /// Returns the entry of a path, if it has one, without counting a use.
    pub(crate) fn peek(&self, hash_part: &HashPart) -> Option<V> {
        self.shard(hash_part).entry(hash_part).cloned()
    }

    /// Changes a path's entry without counting a use. The change must not alter the entry's length.
    pub(crate) fn update(&self, hash_part: &HashPart, change: impl FnOnce(&mut V)) {
        if let Some(entry) = self.shard(hash_part).entry(hash_part) {
            change(entry);
        }
    }

    /// Adds or replaces an entry. If the new entry is too long for a generation, only drops the old
    /// one.
    pub(crate) fn insert(&self, hash_part: HashPart, value: V) {
        let fits = value.memory_len() <= self.generation_len_max();
        // Declared before the guard, so that evicted entries are freed without the lock.
        let _evicted;
        let mut shard = self.shard(&hash_part);
        if !shard.remove(&hash_part) {
            self.miss_count.fetch_add(1, Ordering::Relaxed);
        }
        if fits {
            _evicted = self.insert_young(&mut shard, hash_part, value);
        }
    }

    /// Adds an entry to the young generation. The path must have no entry. Returns the evicted
    /// generation, if any.
    fn insert_young(
        &self,
        shard: &mut Shard<V>,
        hash_part: HashPart,
        value: V,
    ) -> Option<Generation<V>> {
        let mut evicted = None;
        if shard.young.len + value.memory_len() > self.generation_len_max() {
            let evicted_count = shard.old.entries.len() as u64;
            self.eviction_count
                .fetch_add(evicted_count, Ordering::Relaxed);
            let young = std::mem::take(&mut shard.young);
            evicted = Some(std::mem::replace(&mut shard.old, young));
        }
        shard.young.insert(hash_part, value);
        evicted
    }

    /// Whether [`offer`](Self::offer) would accept a small entry for this path.
    pub(crate) fn has_capacity(&self, hash_part: &HashPart) -> bool {
        let shard = self.shard(hash_part);
        shard.old.len < self.generation_len_max() || shard.young.entries.contains_key(hash_part)
    }

    /// Adds an entry to the old generation without counting a use, or replaces the entry where it
    /// is. Returns `false` if there is no free capacity; the path's entry in the old generation is
    /// dropped then, too.
    pub(crate) fn offer(&self, hash_part: HashPart, value: V) -> bool {
        let (len, len_max) = (value.memory_len(), self.generation_len_max());
        if len > len_max {
            return false;
        }
        let mut shard = self.shard(&hash_part);
        if shard.young.remove(&hash_part).is_some() {
            shard.young.insert(hash_part, value);
            return true;
        }
        shard.old.remove(&hash_part);
        let has_capacity = shard.old.len + len <= len_max;
        if has_capacity {
            shard.old.insert(hash_part, value);
        }
        has_capacity
    }

    pub(crate) fn remove(&self, hash_part: &HashPart) {
        self.shard(hash_part).remove(hash_part);
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // Take the entries out first, so that they are freed without the lock.
            let cleared = std::mem::take(&mut *shard.locked());
            drop(cleared);
        }
    }

    /// Returns the table's status for the metrics. Hits are counted by the caller.
    pub(crate) fn status(&self, name: &str) -> CacheStatus {
        let mut status = CacheStatus {
            name: name.to_owned(),
            len_max: (self.shard_len_max * self.shards.len()) as u64,
            miss_count: self.miss_count.load(Ordering::Relaxed),
            eviction_count: self.eviction_count.load(Ordering::Relaxed),
            ..CacheStatus::default()
        };
        for shard in &self.shards {
            let shard = shard.locked();
            status.entry_count += (shard.young.entries.len() + shard.old.entries.len()) as u64;
            status.len += (shard.young.len + shard.old.len) as u64;
        }
        status
    }

    /// Returns the maximum memory of one generation of one shard, in bytes. Longer entries are not
    /// accepted.
    fn generation_len_max(&self) -> usize {
        self.shard_len_max / 2
    }

    fn shard(&self, hash_part: &HashPart) -> MutexGuard<'_, Shard<V>> {
        let index = usize::from(hash_part.as_bytes()[0]) % self.shards.len();
        self.shards[index].locked()
    }
}

impl<V: MemoryLen> Shard<V> {
    fn entry(&mut self, hash_part: &HashPart) -> Option<&mut V> {
        let young = self.young.entries.get_mut(hash_part);
        young.or_else(|| self.old.entries.get_mut(hash_part))
    }

    /// Removes the entry of a path. Returns whether the path had one.
    fn remove(&mut self, hash_part: &HashPart) -> bool {
        let removed = self.young.remove(hash_part);
        removed.or_else(|| self.old.remove(hash_part)).is_some()
    }
}

impl<V: MemoryLen> Generation<V> {
    fn insert(&mut self, hash_part: HashPart, value: V) {
        self.len += value.memory_len();
        self.entries.insert(hash_part, value);
    }

    fn remove(&mut self, hash_part: &HashPart) -> Option<V> {
        let value = self.entries.remove(hash_part)?;
        self.len -= value.memory_len();
        Some(value)
    }
}

// A derived implementation would require that `V` has a default, too.
impl<V> Default for Shard<V> {
    fn default() -> Self {
        let (young, old) = (Generation::default(), Generation::default());
        Self { young, old }
    }
}

impl<V> Default for Generation<V> {
    fn default() -> Self {
        let entries = HashMap::default();
        Self { entries, len: 0 }
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

/// Hasher for hash parts: uses their bytes directly, because they are hashes already.
#[derive(Debug, Default)]
pub(crate) struct HashPartHasher(u64);

impl Hasher for HashPartHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Skip the first byte, which has already selected the shard.
        for byte in bytes.iter().skip(1).take(8) {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_usize(&mut self, _: usize) {
        // Ignore the length that precedes the bytes of an array: it is the same for all hash parts.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD_COUNT: usize = 16;

    /// A test entry whose value is its own length.
    impl MemoryLen for usize {
        fn memory_len(&self) -> usize {
            *self
        }
    }

    fn table(shard_count: usize, memory_len: usize) -> Sharded<usize> {
        Sharded::new(shard_count, memory_len, Arc::default())
    }

    fn hash_part(number: u32) -> HashPart {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4] = 1;
        HashPart::from_bytes(bytes)
    }

    fn memory_len(table: &Sharded<usize>) -> usize {
        let shards = table.shards.iter().map(Locked::locked);
        let values = |shard: MutexGuard<'_, Shard<usize>>| {
            let generations = [&shard.young, &shard.old].into_iter();
            generations
                .flat_map(|all| all.entries.values())
                .sum::<usize>()
        };
        shards.map(values).sum()
    }

    #[test]
    fn an_offer_takes_only_free_capacity() {
        let table = table(1, 100);
        for number in 0..5 {
            assert!(table.has_capacity(&hash_part(number)));
            assert!(table.offer(hash_part(number), 10));
        }
        let one_more = hash_part(5);
        assert!(!table.has_capacity(&one_more));
        assert!(!table.offer(one_more, 1));
        assert_eq!(table.peek(&one_more), None);
        // A use moves the entry to the young generation, and frees capacity in the old one.
        assert_eq!(table.find(&hash_part(0)), Some(10));
        assert!(table.offer(one_more, 10));
        assert_eq!(memory_len(&table), 60);
    }

    #[test]
    fn an_offer_replaces_an_entry_in_place() {
        let table = table(1, 100);
        let (one, two) = (hash_part(1), hash_part(2));
        table.insert(one, 50);
        assert!(table.offer(two, 50));
        assert!(table.offer(one, 20) && table.offer(two, 30));
        assert_eq!((table.peek(&one), table.peek(&two)), (Some(20), Some(30)));
        let lens = || {
            let shard = table.shards[0].locked();
            (shard.young.len, shard.old.len)
        };
        assert_eq!(lens(), (20, 30));
        table.remove(&one);
        table.remove(&two);
        assert_eq!(lens(), (0, 0));
    }

    #[test]
    fn a_used_entry_is_never_evicted_for_an_offer() {
        let table = table(1, 100);
        for number in 0..5 {
            table.insert(hash_part(number), 10);
        }
        for number in 100..1000 {
            table.offer(hash_part(number), 7);
        }
        assert!((0..5).all(|number| table.peek(&hash_part(number)).is_some()));
    }

    /// A narinfo of a path with thousands of references may be this long.
    #[test]
    fn an_entry_longer_than_half_a_shard_is_not_added() {
        let table = table(SHARD_COUNT, SHARD_COUNT * 20_000);
        let part = hash_part(7);
        table.insert(part, 10_000);
        assert_eq!(table.find(&part), Some(10_000));
        assert!(!table.offer(part, 10_001));
        table.insert(part, 10_001);
        assert_eq!(table.find(&part), None);
        assert_eq!(table.status("").miss_count, 1);
    }

    #[test]
    fn memory_is_bounded_and_used_entries_stay() {
        let capacity = 1 << 20;
        let table = table(SHARD_COUNT, capacity);
        let favourite = hash_part(7);
        table.insert(favourite, 500);
        for number in 100..50_000 {
            table.insert(hash_part(number), 500);
            assert!(table.find(&favourite).is_some());
        }
        let (len, status) = (memory_len(&table), table.status("x"));
        assert!(len <= capacity && len >= capacity / 4, "{len}");
        assert_eq!((status.len, &*status.name), (len as u64, "x"));
        assert_eq!(status.entry_count + status.eviction_count, 49_901);
        table.drop_path(&favourite);
        assert_eq!(table.find(&favourite), None);
        table.clear();
        let cleared = table.status("x");
        assert_eq!((cleared.entry_count, cleared.len), (0, 0));
        assert_eq!(cleared.eviction_count, status.eviction_count);
    }

    #[test]
    fn an_update_does_not_count_as_a_use() {
        let table = table(1, 100);
        table.insert(hash_part(1), 50);
        table.insert(hash_part(2), 50);
        table.update(&hash_part(1), |value| *value = 49);
        assert_eq!(table.peek(&hash_part(1)), Some(49));
        table.insert(hash_part(3), 50);
        assert_eq!(table.peek(&hash_part(1)), None);
        table.update(&hash_part(1), |_| panic!("there is no such entry"));
    }
}
