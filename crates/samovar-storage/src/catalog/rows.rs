//! [`Rows`]: rows of paths in memory, so that a look-up of a path or of its NAR needs no query.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use samovar_nix::{HashPart, StorePath};

use crate::metadata::{CacheId, StoredNar, StoredPath};
use crate::objects::InPack;

/// Number of parts, each with a lock of its own.
const SHARD_COUNT: usize = 32;

/// Maximum memory of a part, in bytes: in total 64 MiB, or about 60,000 rows.
const SHARD_SIZE_MAX: usize = (64 << 20) / SHARD_COUNT;

/// Memory of a store path besides its name, in bytes.
const PATH_SIZE: usize = size_of::<StorePath>() + 16;

type Key = (CacheId, HashPart);

/// A cache, and the SHA-256 of a file of a NAR in it.
type FileKey = (CacheId, [u8; 32]);

/// Rows of paths that were looked up.
#[derive(Debug)]
pub(crate) struct Rows {
    shards: [Mutex<Shard>; SHARD_COUNT],
    /// The hash part of a path whose NAR has this file. Who has a lock of `shards` may take one of
    /// these, but not the other way round.
    files: [Mutex<HashMap<FileKey, HashPart>>; SHARD_COUNT],
}

/// The row of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) path: StoredPath,
    /// Place of the NAR's file, if it shares an object with others.
    pub(crate) pack: Option<InPack>,
}

/// Number of times at which rows of a part were forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

#[derive(Debug, Default)]
struct Shard {
    rows: HashMap<Key, Row>,
    /// The keys, oldest first. Some may have no row any more.
    order: VecDeque<Key>,
    size: usize,
    epoch: u64,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            files: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Rows {
    /// Returns a path.
    pub(crate) fn find(&self, key: &Key) -> Option<StoredPath> {
        let shard = locked(self.shard(key));
        shard.rows.get(key).map(|row| row.path.clone())
    }

    /// Returns the NAR of a path of the cache whose file has this hash, and its place in a pack.
    pub(crate) fn nar(
        &self,
        cache: CacheId,
        file_hash: &[u8; 32],
    ) -> Option<(StoredNar, Option<InPack>)> {
        let hash_part = locked(self.files(file_hash))
            .get(&(cache, *file_hash))
            .copied()?;
        let key = (cache, hash_part);
        let shard = locked(self.shard(&key));
        let row = shard.rows.get(&key)?;
        let is_its = row.path.nar.file_hash == *file_hash;
        is_its.then(|| (row.path.nar.clone(), row.pack.clone()))
    }

    /// Returns the epoch of a path. Call this before the query whose result is
    /// [kept](Self::keep).
    pub(crate) fn epoch(&self, key: &Key) -> Epoch {
        Epoch(locked(self.shard(key)).epoch)
    }

    /// Keeps a row which was read in this epoch. Does nothing if a row was forgotten since then: it
    /// may have been this one, before its change was in the database that was read.
    pub(crate) fn keep(&self, key: Key, epoch: Epoch, row: Row) {
        let file_hash = row.path.nar.file_hash;
        let mut shard = locked(self.shard(&key));
        if Epoch(shard.epoch) != epoch {
            return;
        }
        shard.size += size(&row);
        match shard.rows.insert(key, row) {
            Some(replaced) => {
                shard.size -= size(&replaced);
                self.forget_file(&key, &replaced);
            }
            None => shard.order.push_back(key),
        }
        locked(self.files(&file_hash)).insert((key.0, file_hash), key.1);
        while shard.size > SHARD_SIZE_MAX
            && let Some(oldest) = shard.order.pop_front()
        {
            self.remove(&mut shard, &oldest);
        }
    }

    /// Sets the time of the last use of a path.
    pub(crate) fn used(&self, key: &Key, at: i64) {
        if let Some(row) = locked(self.shard(key)).rows.get_mut(key) {
            row.path.used_at = at;
        }
    }

    /// Forgets the row of a path, also if a query is just reading it.
    pub(crate) fn forget(&self, key: &Key) {
        let mut shard = locked(self.shard(key));
        shard.epoch += 1;
        self.remove(&mut shard, key);
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
        for files in &self.files {
            locked(files).clear();
        }
    }

    /// Removes a row from its part.
    fn remove(&self, shard: &mut Shard, key: &Key) {
        if let Some(row) = shard.rows.remove(key) {
            shard.size -= size(&row);
            self.forget_file(key, &row);
        }
    }

    /// Forgets that the file of this row leads to it. The caller has the lock of its part.
    fn forget_file(&self, key: &Key, row: &Row) {
        let file_hash = &row.path.nar.file_hash;
        let mut files = locked(self.files(file_hash));
        let file = (key.0, *file_hash);
        if files.get(&file) == Some(&key.1) {
            files.remove(&file);
        }
    }

    fn files(&self, file_hash: &[u8; 32]) -> &Mutex<HashMap<FileKey, HashPart>> {
        &self.files[usize::from(file_hash[0]) % SHARD_COUNT]
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // A hash part is a hash: its bytes are as good as random.
        let byte = key.1.as_bytes().first().copied().unwrap_or_default();
        &self.shards[usize::from(byte) % SHARD_COUNT]
    }
}

fn locked<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the memory of a row, in bytes, with some tolerance.
fn size(row: &Row) -> usize {
    let path = &row.path;
    let paths = path.references.iter().chain(&path.deriver);
    let paths: usize = paths.map(|path| PATH_SIZE + path.name().len()).sum();
    let signatures: usize = path.signatures.len() * 160;
    let file = size_of::<FileKey>() + size_of::<HashPart>();
    2 * size_of::<Key>() + size_of::<Row>() + file + paths + signatures + 200
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

    fn file_hash(id: i64) -> [u8; 32] {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&id.to_le_bytes());
        hash
    }

    fn row(id: i64, reference_count: usize) -> Row {
        let text = "/nix/store/dvpck1kaf4wc8592ffdq2dr55m2gj8x4-lib-top";
        let path = StorePath::parse(&StoreDir::default(), text).unwrap();
        let path = StoredPath {
            id,
            used_at: 0,
            references: vec![path.clone(); reference_count],
            path,
            nar: StoredNar {
                id,
                nar_hash: NarHash::from_bytes([0; 32]),
                nar_size: 0,
                file_hash: file_hash(id),
                file_size: 0,
                compression: Compression::None,
                object_key: String::new(),
            },
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registered_at: 0,
        };
        Row { path, pack: None }
    }

    #[test]
    fn a_row_is_not_kept_if_it_was_changed_while_it_was_read() {
        let rows = Rows::default();
        let epoch = rows.epoch(&key(1));
        rows.forget(&key(1));
        rows.keep(key(1), epoch, row(1, 0));
        assert_eq!(rows.find(&key(1)), None);

        let epoch = rows.epoch(&key(1));
        rows.keep(key(1), epoch, row(1, 0));
        assert_eq!(rows.find(&key(1)).map(|path| path.id), Some(1));
        rows.used(&key(1), 7);
        assert_eq!(rows.find(&key(1)).map(|path| path.used_at), Some(7));
        rows.forget_all();
        assert_eq!(rows.find(&key(1)), None);
        rows.keep(key(1), epoch, row(1, 0));
        assert_eq!(rows.find(&key(1)), None);
    }

    #[test]
    fn memory_is_bounded() {
        let rows = Rows::default();
        for number in 0..20_000 {
            let key = key(number);
            rows.keep(key, rows.epoch(&key), row(i64::from(number), 100));
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
        assert!(rows.files.iter().all(|files| locked(files).is_empty()));
    }

    #[test]
    fn a_nar_is_found_as_long_as_a_path_has_it() {
        let rows = Rows::default();
        let (cache, hash) = (CacheId(1), file_hash(1));
        let found = || rows.nar(cache, &hash).map(|(nar, _)| nar.id);
        assert_eq!(found(), None);
        for number in [1, 2] {
            rows.keep(key(number), rows.epoch(&key(number)), row(1, 0));
        }
        assert_eq!(found(), Some(1));
        assert_eq!(rows.nar(CacheId(2), &hash), None);
        // The path has another NAR now.
        rows.keep(key(2), rows.epoch(&key(2)), row(2, 0));
        assert_ne!(found(), Some(2));
        rows.keep(key(1), rows.epoch(&key(1)), row(1, 0));
        assert_eq!(found(), Some(1));
        rows.forget(&key(1));
        assert_eq!(found(), None);
        rows.keep(key(1), rows.epoch(&key(1)), row(1, 0));
        rows.forget_all();
        assert_eq!(found(), None);
    }
}
