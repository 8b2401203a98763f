//! [`Stored`]: the rows on which it depends what may be published.

use std::collections::{HashMap, HashSet};

use samovar_nix::{Glob, HashPart, NarHash};

use super::super::rows::unsigned;
use super::super::{CacheId, NewPath, USE_INTERVAL, caches, limits, tokens};
use crate::error::StorageError;
use crate::sql::{Connection, Transaction, Value, params};

/// The rows that paths to publish, and their references, have.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The valid tokens, each with the pattern of the names that it permits.
    pub(super) tokens: HashMap<i64, Option<Glob>>,
    /// The caches into which paths may be published.
    pub(super) caches: HashMap<CacheId, StoredCache>,
    pub(super) nars: HashMap<i64, StoredNar>,
    pub(super) paths: HashMap<(CacheId, HashPart), KnownPath>,
    /// The NARs that paths of a cache use.
    pub(super) used_nars: HashSet<(CacheId, i64)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct StoredCache {
    /// Total length of the files of NARs, in bytes.
    pub(super) file_bytes: u64,
    /// Total length of all else, in bytes.
    pub(super) extra_bytes: u64,
    /// Whether its deletion is complete: it has no rows, and must be added again.
    pub(super) is_deleted: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct StoredNar {
    /// 1: live; 2: condemned; 3: lost.
    pub(super) state: i64,
    pub(super) file_size: u64,
    pub(super) nar_hash: NarHash,
}

impl StoredNar {
    pub(super) const fn is_lost(&self) -> bool {
        self.state == 3
    }
}

/// A path that the cache has, or will have.
#[derive(Debug, Clone)]
pub(super) struct KnownPath {
    pub(super) row: PathRow,
    pub(super) name: String,
    pub(super) sigs: String,
    pub(super) nar_id: i64,
    pub(super) nar: StoredNar,
    /// Whether its use now must be recorded.
    pub(super) is_unrecorded: bool,
}

/// The row of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PathRow {
    /// The row with this number.
    Stored(i64),
    /// The row that will be inserted for the path with this index in the plan.
    New(usize),
}

impl Stored {
    pub(super) fn read(
        transaction: &Transaction<'_>,
        batch: &[&[NewPath]],
        now: i64,
    ) -> Result<Self, StorageError> {
        let mut stored = Self::default();
        let new = || batch.iter().copied().flatten();
        // Read the tokens in the transaction that inserts the paths: after a revocation has
        // returned, no upload with the token is published.
        for token in new().filter_map(|new| new.token).collect::<HashSet<_>>() {
            if let Some(names) = tokens::permitted_names(transaction, token, now)? {
                stored.tokens.insert(token, names);
            }
        }
        stored.read_nars(transaction, new().map(|new| new.nar_id).collect())?;
        let mut keys: HashMap<CacheId, HashSet<HashPart>> = HashMap::new();
        for new in new() {
            let keys = keys.entry(new.cache).or_default();
            keys.insert(new.path.hash_part());
            keys.extend(
                new.references
                    .iter()
                    .map(|reference| reference.path.hash_part()),
            );
        }
        for (cache, hash_parts) in keys {
            stored.read_cache(transaction, cache)?;
            stored.read_paths(transaction, cache, hash_parts, now)?;
            let of_cache = new().filter(|new| new.cache == cache);
            stored.read_used_nars(transaction, cache, of_cache.map(|new| new.nar_id).collect())?;
        }
        Ok(stored)
    }

    fn read_cache(
        &mut self,
        connection: &Connection<'_>,
        cache: CacheId,
    ) -> Result<(), StorageError> {
        let is_deleted = match caches::deletion(connection, cache)? {
            1 => return Ok(()),
            deletion => deletion == 2,
        };
        let (file_bytes, extra_bytes) = limits::bytes(connection, cache)?;
        let row = StoredCache {
            file_bytes,
            extra_bytes,
            is_deleted,
        };
        self.caches.insert(cache, row);
        Ok(())
    }

    fn read_nars(
        &mut self,
        connection: &Connection<'_>,
        ids: HashSet<i64>,
    ) -> Result<(), StorageError> {
        let columns = "select id, state, file_size, nar_hash from nar where id";
        let ids: Vec<Value<'_>> = ids.into_iter().map(Value::from).collect();
        connection.each_of(columns, &[], &ids, |row| {
            let nar = StoredNar {
                state: row.get(1)?,
                file_size: unsigned(row.get(2)?)?,
                nar_hash: NarHash::from_bytes(row.get(3)?),
            };
            self.nars.insert(row.get(0)?, nar);
            Ok(())
        })
    }

    fn read_paths(
        &mut self,
        connection: &Connection<'_>,
        cache: CacheId,
        hash_parts: HashSet<HashPart>,
        now: i64,
    ) -> Result<(), StorageError> {
        let columns = "select hash_part, path.id, name, sigs, \
                       used_at <= ?2 or condemned_at is not null, \
                       nar_id, state, file_size, nar_hash \
                       from path join nar on nar.id = nar_id where cache_id = ?1 and hash_part";
        let params = params![cache, now - USE_INTERVAL];
        let hash_parts: Vec<HashPart> = hash_parts.into_iter().collect();
        let keys: Vec<Value<'_>> = hash_parts
            .iter()
            .map(|part| part.as_bytes().into())
            .collect();
        connection.each_of(columns, params, &keys, |row| {
            let path = KnownPath {
                row: PathRow::Stored(row.get(1)?),
                name: row.get(2)?,
                sigs: row.get(3)?,
                is_unrecorded: row.get(4)?,
                nar_id: row.get(5)?,
                nar: StoredNar {
                    state: row.get(6)?,
                    file_size: unsigned(row.get(7)?)?,
                    nar_hash: NarHash::from_bytes(row.get(8)?),
                },
            };
            self.paths
                .insert((cache, HashPart::from_bytes(row.get(0)?)), path);
            Ok(())
        })
    }

    fn read_used_nars(
        &mut self,
        connection: &Connection<'_>,
        cache: CacheId,
        ids: HashSet<i64>,
    ) -> Result<(), StorageError> {
        let columns = "select distinct nar_id from path where cache_id = ?1 and nar_id";
        let ids: Vec<Value<'_>> = ids.into_iter().map(Value::from).collect();
        connection.each_of(columns, params![cache], &ids, |row| {
            self.used_nars.insert((cache, row.get(0)?));
            Ok(())
        })
    }
}
