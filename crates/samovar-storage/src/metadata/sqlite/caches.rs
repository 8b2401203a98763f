//! Statements that list and delete caches.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::HashPart;

use super::Sqlite;
use super::rows::{is_shown, unsigned};
use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::metadata::{CacheId, CacheSummary, Caches, DeletedCache, Freed, Metadata as _};

/// Condition for valid tokens that are restricted to one cache. `?1`: the present time.
const VALID: &str = "instr(token.cache, '*') = 0 and instr(token.cache, '?') = 0 \
                     and revoked_at is null and (expires_at is null or expires_at > ?1)";

impl Caches for Sqlite {
    fn caches(&self) -> Result<Vec<CacheSummary>, StorageError> {
        self.read(|connection| all(connection, self.now()))
    }

    fn path_count(&self, cache: CacheId) -> Result<u64, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(concat!(
                "select count(*) from path where cache_id = ?1 and ",
                is_shown!("?1")
            ))?;
            unsigned(statement.query_row([cache.0], |row| row.get(0))?)
        })
    }

    fn own_nars(&self, name: &str) -> Result<Freed, StorageError> {
        self.read(|connection| own_nars(connection, name))
    }

    fn delete_cache(&self, name: &str) -> Result<Option<DeletedCache>, StorageError> {
        self.write(|transaction| delete(transaction, name, self.now()))
    }

    fn cache_to_purge(&self) -> Result<Option<CacheId>, StorageError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("select id from cache where deletion = 1 limit 1")?;
            let id = statement.query_row([], |row| row.get(0)).optional()?;
            Ok(id.map(CacheId))
        })
    }

    fn purge_cache(
        &self,
        cache: CacheId,
        count_max: u32,
        remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.write(|transaction| purge(transaction, cache, count_max, remove_mirror))
    }
}

pub(crate) fn all(connection: &Connection, now: i64) -> Result<Vec<CacheSummary>, StorageError> {
    let query = format!(
        "select name, coalesce(file_bytes + extra_bytes, 0), \
             (select count(*) from path where cache_id = its.id), \
             (select count(*) from pin where cache_id = its.id), \
             (select count(*) from token where token.cache = names.name and {VALID}), \
             (select registered_at from path where id = \
                 (select max(id) from path where cache_id = its.id)), \
             coalesce(deletion = 1, false) \
         from (select name from cache where deletion <> 2 \
               union select token.cache from token where {VALID}) as names \
         left join cache as its using (name) order by name"
    );
    // All parts of the query read the same snapshot.
    let mut statement = connection.prepare(&query)?;
    let mut rows = statement.query([now])?;
    let mut caches = Vec::new();
    while let Some(row) = rows.next()? {
        caches.push(CacheSummary {
            name: row.get(0)?,
            used_bytes: unsigned(row.get(1)?)?,
            path_count: unsigned(row.get(2)?)?,
            pin_count: unsigned(row.get(3)?)?,
            token_count: unsigned(row.get(4)?)?,
            uploaded_at: row.get(5)?,
            is_hidden: row.get(6)?,
        });
    }
    Ok(caches)
}

fn own_nars(connection: &Connection, name: &str) -> Result<Freed, StorageError> {
    let (nar_count, file_bytes) = connection.query_row(
        "select count(*), coalesce(sum(file_size), 0) from cache as its join nar on nar.id in \
             (select nar_id from path where cache_id = its.id) \
         where its.name = ?1 and not exists \
             (select 1 from path where nar_id = nar.id and cache_id <> its.id)",
        [name],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    Ok(Freed {
        nar_count: unsigned(nar_count)?,
        file_bytes: unsigned(file_bytes)?,
    })
}

fn delete(
    transaction: &Transaction<'_>,
    name: &str,
    now: i64,
) -> Result<Option<DeletedCache>, StorageError> {
    let is_found = transaction.execute(
        "update cache set deletion = 1 where name = ?1 and deletion <> 2",
        [name],
    )? > 0;
    let pin_count = transaction.execute(
        "delete from pin where cache_id = (select id from cache where name = ?1)",
        [name],
    )?;
    let revoke = format!("update token set revoked_at = ?1 where cache = ?2 and {VALID}");
    let token_count = transaction.execute(&revoke, params![now, name])?;
    Ok((is_found || token_count > 0).then_some(DeletedCache {
        pin_count,
        token_count,
    }))
}

fn purge(
    transaction: &Transaction<'_>,
    cache: CacheId,
    count_max: u32,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    // Another process may have completed the deletion, and an upload may have followed.
    let is_hidden: bool = transaction.query_row(
        "select exists (select 1 from cache where id = ?1 and deletion = 1)",
        [cache.0],
        |row| row.get(0),
    )?;
    if !is_hidden
        || purge_realisations(transaction, cache, count_max, remove_mirror)?
        || purge_paths(transaction, cache, count_max, remove_mirror)?
    {
        return Ok(());
    }
    transaction.execute("delete from log where cache_id = ?1", [cache.0])?;
    transaction.execute("delete from removed_pin where cache_id = ?1", [cache.0])?;
    transaction.execute("update cache set deletion = 2 where id = ?1", [cache.0])?;
    Ok(())
}

/// Deletes realisations of a hidden cache. Returns whether there were any.
fn purge_realisations(
    transaction: &Transaction<'_>,
    cache: CacheId,
    count_max: u32,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    let keys: Vec<(String, bool)> = transaction
        .prepare_cached(
            "select key, exists (select 1 from extra as other \
                 where cache_id = (select cast(value as integer) from meta \
                     where meta.key = 'mirrored-cache') \
                 and cache_id <> ?1 and other.key = extra.key) \
             from extra where cache_id = ?1 limit ?2",
        )?
        .query_map(params![cache.0, count_max], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<Result<_, _>>()?;
    for (key, is_of_mirrored) in &keys {
        transaction
            .prepare_cached("delete from extra where cache_id = ?1 and key = ?2")?
            .execute(params![cache.0, key])?;
        if !is_of_mirrored {
            remove_mirror(key)?;
        }
    }
    Ok(!keys.is_empty())
}

/// Deletes paths of a hidden cache. Returns whether there were any.
fn purge_paths(
    transaction: &Transaction<'_>,
    cache: CacheId,
    count_max: u32,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    // The directory has the narinfos of the mirrored cache, which may be another one by now.
    let paths: Vec<(i64, [u8; 20], bool)> = transaction
        .prepare_cached(
            "select id, hash_part, exists (select 1 from path as other \
                 where cache_id = (select cast(value as integer) from meta \
                     where key = 'mirrored-cache') \
                 and cache_id <> ?1 and other.hash_part = path.hash_part) \
             from path where cache_id = ?1 limit ?2",
        )?
        .query_map(params![cache.0, count_max], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<Result<_, _>>()?;
    for (id, hash_part, is_of_mirrored) in &paths {
        // All paths of the cache are deleted, so the order of references does not matter.
        for statement in [
            "delete from pin where path_id = ?1",
            "delete from reference where reference = ?1",
            "delete from path where id = ?1",
        ] {
            transaction.prepare_cached(statement)?.execute([id])?;
        }
        if !is_of_mirrored {
            remove_mirror(&narinfo_key(HashPart::from_bytes(*hash_part)))?;
        }
    }
    Ok(!paths.is_empty())
}

/// Returns whether uploads into a cache may be published. If its deletion is complete, creates it
/// anew.
pub(super) fn restore(transaction: &Transaction<'_>, cache: CacheId) -> Result<bool, StorageError> {
    let deletion: i64 = transaction
        .prepare_cached("select deletion from cache where id = ?1")?
        .query_row([cache.0], |row| row.get(0))?;
    if deletion == 2 {
        transaction.execute("update cache set deletion = 0 where id = ?1", [cache.0])?;
    }
    Ok(deletion != 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database with the caches `a`, which is mirrored, and `b`. Both have the path 1, `a` also
    /// has the path 2, and `b` the path 3, which refers to path 1.
    fn database(dir: &std::path::Path) -> (Sqlite, CacheId) {
        let database = Sqlite::open(&dir.join("db.sqlite")).unwrap();
        let a = database.cache("a", "/nix/store").unwrap();
        let b = database.cache("b", "/nix/store").unwrap();
        database.set_mirrored(a).unwrap();
        let nar = "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, \
                   object_key, created_at) values (?1, 1, ?1, ?2, 'none', ?2, 0)";
        let path = "insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                    registered_at) values (?1, ?2, 'x', ?3, 0, '', 0)";
        database
            .write(|transaction| {
                for number in [1_u8, 2, 3] {
                    transaction.execute(nar, params![[number; 32], number])?;
                }
                for (cache, number) in [(a, 1_u8), (a, 2), (b, 1), (b, 3)] {
                    transaction.execute(path, params![cache.0, [number; 20], number])?;
                }
                transaction.execute("insert into reference values (4, 3)", [])?;
                Ok(())
            })
            .unwrap();
        (database, b)
    }

    /// Deletes the rows of a hidden cache one by one. Returns the removed keys, sorted.
    fn purge_all(database: &Sqlite) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some(cache) = database.cache_to_purge().unwrap() {
            let mut remove = |key: &str| {
                keys.push(key.to_owned());
                Ok(())
            };
            database.purge_cache(cache, 1, &mut remove).unwrap();
        }
        keys.sort();
        keys
    }

    fn key(number: u8) -> String {
        narinfo_key(HashPart::from_bytes([number; 20]))
    }

    #[test]
    fn narinfos_of_the_mirrored_cache_stay_if_another_cache_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (database, b) = database(dir.path());
        let freed = database.own_nars("b").unwrap();
        assert_eq!((freed.nar_count, freed.file_bytes), (1, 3));
        assert!(database.delete_cache("b").unwrap().is_some());
        let is_there = |number| database.has_path(b, HashPart::from_bytes([number; 20]));
        assert!(!is_there(1).unwrap() && !is_there(3).unwrap());
        assert_eq!(purge_all(&database), [key(3)]);
        assert_eq!(database.delete_cache("b").unwrap(), None);

        assert!(database.delete_cache("a").unwrap().is_some());
        let mut expected = [key(1), key(2)];
        expected.sort();
        assert_eq!(purge_all(&database), expected);
        assert_eq!(database.caches().unwrap(), []);
    }

    #[test]
    fn a_deleted_cache_can_get_another_store_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (database, b) = database(dir.path());
        database.delete_cache("b").unwrap();
        let other = database.cache("b", "/other/store");
        assert!(
            matches!(other, Err(StorageError::StoreDir { .. })),
            "{other:?}"
        );
        purge_all(&database);
        assert_eq!(database.cache("b", "/other/store").unwrap(), b);
    }
}
