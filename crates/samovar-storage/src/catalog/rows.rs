//! [`Rows`]: rows of paths in memory, so that a look-up needs no query.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use samovar_nix::{HashPart, StorePath};

use crate::metadata::{CacheId, StoredPath};

/// Number of parts, each with a lock of its own.
const SHARD_COUNT: usize = 32;

/// Maximum memory of a part, in bytes: in total 64 MiB, or about 60,000 rows.
const SHARD_SIZE_MAX: usize = (64 << 20) / SHARD_COUNT;

/// Memory of a store path besides its name, in bytes.
const PATH_SIZE: usize = size_of::<StorePath>() + 16;

type Key = (CacheId, HashPart);

/// Rows of paths that were looked up.
#[derive(Debug)]
pub(crate) struct Rows {
    shards: [Mutex<Shard>; SHARD_COUNT],
}

/// Number of times at which rows of a part were forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

#[derive(Debug, Default)]
struct Shard {
    rows: HashMap<Key, StoredPath>,
    /// The keys, oldest first. Some may have no row any more.
    order: VecDeque<Key>,
    size: usize,
    epoch: u64,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Rows {
    /// Returns the row of a path.
    pub(crate) fn find(&self, key: &Key) -> Option<StoredPath> {
        locked(self.shard(key)).rows.get(key).cloned()
    }

    /// Returns the epoch of a path. Call this before the query whose result is
    /// [kept](Self::keep).
    pub(crate) fn epoch(&self, key: &Key) -> Epoch {
        Epoch(locked(self.shard(key)).epoch)
    }

    /// Keeps a row which was read in this epoch. Does nothing if a row was forgotten since then: it
    /// may have been this one, before its change was in the database that was read.
    pub(crate) fn keep(&self, key: Key, epoch: Epoch, path: StoredPath) {
        let mut shard = locked(self.shard(&key));
        if Epoch(shard.epoch) != epoch {
            return;
        }
        let size = size(&path);
        let replaced = shard.rows.insert(key, path);
        shard.size += size;
        match replaced {
            Some(replaced) => shard.size -= self::size(&replaced),
            None => shard.order.push_back(key),
        }
        while shard.size > SHARD_SIZE_MAX
            && let Some(oldest) = shard.order.pop_front()
        {
            shard.remove(&oldest);
        }
    }

    /// Sets the time of the last use of a path.
    pub(crate) fn used(&self, key: &Key, at: i64) {
        if let Some(path) = locked(self.shard(key)).rows.get_mut(key) {
            path.used_at = at;
        }
    }

    /// Forgets the row of a path, also if a query is just reading it.
    pub(crate) fn forget(&self, key: &Key) {
        let mut shard = locked(self.shard(key));
        shard.epoch += 1;
        shard.remove(key);
        // Keys without rows make room when there are many of them.
        if shard.order.len() > 2 * shard.rows.len() + 64 {
            let Shard { rows, order, .. } = &mut *shard;
            order.retain(|key| rows.contains_key(key));
        }
    }

    /// Forgets all rows, also those that queries are just reading.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            let mut shard = locked(shard);
            let epoch = shard.epoch + 1;
            *shard = Shard {
                epoch,
                ..Shard::default()
            };
        }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // A hash part is a hash: its bytes are as good as random.
        let byte = key.1.as_bytes().first().copied().unwrap_or_default();
        &self.shards[usize::from(byte) % SHARD_COUNT]
    }
}

impl Shard {
    fn remove(&mut self, key: &Key) {
        if let Some(path) = self.rows.remove(key) {
            self.size -= size(&path);
        }
    }
}

fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the memory of a row, in bytes, with some tolerance.
fn size(path: &StoredPath) -> usize {
    let paths = path.references.iter().chain(&path.deriver);
    let paths: usize = paths.map(|path| PATH_SIZE + path.name().len()).sum();
    let signatures: usize = path.signatures.len() * 160;
    2 * size_of::<Key>() + size_of::<StoredPath>() + paths + signatures + 200
}

#[cfg(test)]
mod tests {
    use samovar_nix::narinfo::Compression;
    use samovar_nix::{NarHash, StoreDir};

    use super::*;
    use crate::metadata::StoredNar;

    fn key(number: u32) -> Key {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        (CacheId(1), HashPart::from_bytes(bytes))
    }

    fn path(id: i64, reference_count: usize) -> StoredPath {
        let text = "/nix/store/dvpck1kaf4wc8592ffdq2dr55m2gj8x4-lib-top";
        let path = StorePath::parse(&StoreDir::default(), text).unwrap();
        StoredPath {
            id,
            used_at: 0,
            references: vec![path.clone(); reference_count],
            path,
            nar: StoredNar {
                id,
                nar_hash: NarHash::from_bytes([0; 32]),
                nar_size: 0,
                file_hash: [0; 32],
                file_size: 0,
                compression: Compression::None,
                object_key: String::new(),
            },
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registered_at: 0,
        }
    }

    #[test]
    fn a_row_is_not_kept_if_it_was_changed_while_it_was_read() {
        let rows = Rows::default();
        let epoch = rows.epoch(&key(1));
        rows.forget(&key(1));
        rows.keep(key(1), epoch, path(1, 0));
        assert_eq!(rows.find(&key(1)), None);

        let epoch = rows.epoch(&key(1));
        rows.keep(key(1), epoch, path(1, 0));
        assert_eq!(rows.find(&key(1)).map(|path| path.id), Some(1));
        rows.used(&key(1), 7);
        assert_eq!(rows.find(&key(1)).map(|path| path.used_at), Some(7));
        rows.forget_all();
        assert_eq!(rows.find(&key(1)), None);
        rows.keep(key(1), epoch, path(1, 0));
        assert_eq!(rows.find(&key(1)), None);
    }

    #[test]
    fn memory_is_bounded() {
        let rows = Rows::default();
        for number in 0..20_000 {
            let key = key(number);
            rows.keep(key, rows.epoch(&key), path(i64::from(number), 100));
        }
        for shard in &rows.shards {
            let shard = locked(shard);
            let sizes: usize = shard.rows.values().map(size).sum();
            assert_eq!(shard.size, sizes);
            assert!(sizes <= SHARD_SIZE_MAX);
            assert_eq!(shard.order.len(), shard.rows.len());
        }
        assert!(rows.find(&key(19_999)).is_some());
        for number in 0..20_000 {
            rows.forget(&key(number));
        }
        assert!(rows.shards.iter().all(|shard| locked(shard).size == 0));
        assert!(
            rows.shards
                .iter()
                .all(|shard| locked(shard).order.len() <= 64)
        );
    }
}
