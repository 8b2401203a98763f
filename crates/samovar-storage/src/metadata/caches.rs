//! The caches of a storage: lists, creates and deletes them.
//!
//! A cache is deleted in two stages. [`delete`] hides its paths in one transaction. `purge` then
//! deletes their rows, a few at a time, so that uploads into other caches do not wait. NARs that no
//! other cache uses are left to the collector.

use rusqlite::{Connection, OptionalExtension as _, ToSql, params};
use samovar_nix::{HashPart, StoreDir};

use super::rows::{damaged, is_shown, unsigned};
use super::{CacheId, Database};
use crate::error::StorageError;
use crate::layout::narinfo_key;

/// Condition for valid tokens that are restricted to one cache. `?1`: the present time.
const VALID: &str = "instr(token.cache, '*') = 0 and instr(token.cache, '?') = 0 \
                     and revoked_at is null and (expires_at is null or expires_at > ?1)";

/// A cache with its totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheSummary {
    /// Name of the cache.
    pub name: String,
    /// Number of paths in the cache.
    pub path_count: u64,
    /// Total length of what the cache stores, in bytes: of the files of NARs that its paths use,
    /// each counted once, of its build logs and realisations, and of its narinfos.
    pub used_bytes: u64,
    /// Number of pins, in which each generation counts.
    pub pin_count: u64,
    /// Number of valid tokens that are restricted to this cache.
    pub token_count: u64,
    /// Time of the last upload of a new path, in seconds since 1970. `None`: there is no path.
    pub uploaded_at: Option<i64>,
    /// Whether the cache was deleted and some of its rows are left.
    pub is_hidden: bool,
}

/// A row of the table of caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRow {
    /// Row number, which identifies the cache.
    pub id: CacheId,
    /// Name of the cache.
    pub name: String,
    /// The store directory of the cache's paths.
    pub store_dir: StoreDir,
}

/// What the deletion of a cache has removed at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeletedCache {
    /// Number of removed pins, in which each generation counts.
    pub pin_count: usize,
    /// Number of revoked tokens.
    pub token_count: usize,
}

/// NARs that the collector deletes once a cache is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Freed {
    /// Number of NARs.
    pub nar_count: u64,
    /// Total length of their files, in bytes.
    pub file_bytes: u64,
}

/// Returns the caches that have a row or a valid token of their own, sorted by name. Omits
/// deleted ones.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn all(database: &Database) -> Result<Vec<CacheSummary>, StorageError> {
    database.read_raw(|connection| all_in(connection, database.now()))
}

/// Returns the number of paths in a cache. Scans an index, which takes about 30 ms for a
/// million paths.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn path_count(database: &Database, cache: CacheId) -> Result<u64, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare_cached(concat!(
            "select count(*) from path where cache_id = ?1 and ",
            is_shown!("?1")
        ))?;
        unsigned(statement.query_row([cache.0], |row| row.get(0))?)
    })
}

/// Returns the NARs that only paths of this cache use.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn own_nars(database: &Database, name: &str) -> Result<Freed, StorageError> {
    database.read_raw(|connection| {
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
    })
}

/// Hides the paths of a cache, removes its pins, and revokes the tokens that are valid for this
/// cache only, in one transaction. Returns `None` if there is no such cache and no such token.
///
/// # Errors
///
/// Any [`StorageError`]. Nothing is changed then.
pub fn delete(database: &Database, name: &str) -> Result<Option<DeletedCache>, StorageError> {
    database.write_raw(|transaction| {
        let now = database.now();
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
    })
}

/// Returns a cache whose paths are hidden and not deleted yet, or `None` if there is none.
pub(crate) fn to_purge(database: &Database) -> Result<Option<CacheId>, StorageError> {
    database.read_raw(|connection| {
        let mut statement =
            connection.prepare_cached("select id from cache where deletion = 1 limit 1")?;
        let id = statement.query_row([], |row| row.get(0)).optional()?;
        Ok(id.map(CacheId))
    })
}

/// Deletes at most `count_max` paths or realisations of a hidden cache, in one transaction in
/// which `remove_mirror` is called with the key of each of their files in the directory. If
/// none is left, records that the deletion of the cache is complete.
///
/// # Errors
///
/// Any [`StorageError`]. No row is deleted then.
pub(crate) fn purge(
    database: &Database,
    cache: CacheId,
    count_max: u32,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    database.write_raw(|transaction| {
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
    })
}

/// Returns the cache whose narinfos are also written into the directory. `None`: no cache is
/// mirrored.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn mirrored(database: &Database) -> Result<Option<CacheRow>, StorageError> {
    database.read_raw(mirrored_in)
}

/// Returns the cache with this name, or `None` if it does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn find(database: &Database, name: &str) -> Result<Option<CacheRow>, StorageError> {
    database.read_raw(|connection| select(connection, "?1 and deletion = 0", &[&name]))
}

/// Returns the name of a cache that has a path with this hash part.
pub(crate) fn of_path(
    database: &Database,
    hash_part: HashPart,
) -> Result<Option<String>, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare_cached(
            "select name from cache where deletion = 0 and exists (select 1 from path \
             where cache_id = cache.id and hash_part = ?1)",
        )?;
        let name = statement.query_row([hash_part.as_bytes()], |row| row.get(0));
        Ok(name.optional()?)
    })
}

/// Returns the names of all caches that are not deleted.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn names(database: &Database) -> Result<Vec<String>, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare("select name from cache where deletion = 0")?;
        let names = statement.query_map([], |row| row.get(0))?;
        Ok(names.collect::<Result<_, _>>()?)
    })
}

/// Returns the cache with this name. Creates it if it does not exist.
///
/// # Errors
///
/// [`StorageError::StoreDir`] if the cache exists with another store directory. Other errors.
pub fn add(database: &Database, name: &str, store_dir: &str) -> Result<CacheId, StorageError> {
    let connection = &*database.writer()?;
    let now = database.now();
    connection.execute(
        "insert or ignore into cache (name, store_dir, created_at) values (?1, ?2, ?3)",
        params![name, store_dir, now],
    )?;
    // A deleted cache has no paths, so it may get another store directory.
    connection.execute(
        "update cache set store_dir = ?2 where name = ?1 and deletion = 2",
        [name, store_dir],
    )?;
    let (id, stored): (i64, String) = connection.query_row(
        "select id, store_dir from cache where name = ?1",
        [name],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if stored != store_dir {
        return Err(StorageError::StoreDir {
            stored,
            served: store_dir.to_owned(),
        });
    }
    Ok(CacheId(id))
}

/// Records that the narinfos of this cache are also written into the directory.
pub(crate) fn set_mirrored(database: &Database, cache: CacheId) -> Result<(), StorageError> {
    let connection = &*database.writer()?;
    connection.execute(
        "insert into meta values ('mirrored-cache', ?1) \
         on conflict do update set value = excluded.value where value <> excluded.value",
        [cache.0.to_string()],
    )?;
    Ok(())
}

pub(crate) fn all_in(connection: &Connection, now: i64) -> Result<Vec<CacheSummary>, StorageError> {
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

/// Deletes realisations of a hidden cache. Returns whether there were any.
fn purge_realisations(
    transaction: &Connection,
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
    transaction: &Connection,
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

/// Returns whether uploads into a cache may be published. If the deletion of the cache is complete,
/// creates the cache again.
pub(super) fn restore(transaction: &Connection, cache: CacheId) -> Result<bool, StorageError> {
    let deletion: i64 = transaction
        .prepare_cached("select deletion from cache where id = ?1")?
        .query_row([cache.0], |row| row.get(0))?;
    if deletion == 2 {
        transaction.execute("update cache set deletion = 0 where id = ?1", [cache.0])?;
    }
    Ok(deletion != 1)
}

pub(super) fn mirrored_in(connection: &Connection) -> Result<Option<CacheRow>, StorageError> {
    let mirrored = "(select name from cache where id = \
                    (select cast(value as integer) from meta where key = 'mirrored-cache'))";
    select(connection, mirrored, &[])
}

/// Returns the cache whose name is the value of an SQL expression.
fn select(
    connection: &Connection,
    name: &str,
    parameters: &[&dyn ToSql],
) -> Result<Option<CacheRow>, StorageError> {
    let query = format!("select id, name, store_dir from cache where name = {name}");
    let found: Option<(i64, String, String)> = connection
        .query_row(&query, parameters, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((id, name, dir)) = found else {
        return Ok(None);
    };
    let store_dir = StoreDir::new(&dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?;
    Ok(Some(CacheRow {
        id: CacheId(id),
        name,
        store_dir,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::paths;
    use super::*;

    /// A database with the caches `a`, which is mirrored, and `b`. Both have the path 1, `a` also
    /// has the path 2, and `b` the path 3, which refers to path 1.
    fn database(dir: &std::path::Path) -> (Database, CacheId) {
        let database = Database::open(&dir.join("db.sqlite")).unwrap();
        let a = add(&database, "a", "/nix/store").unwrap();
        let b = add(&database, "b", "/nix/store").unwrap();
        set_mirrored(&database, a).unwrap();
        let nar = "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, \
                   object_key, created_at) values (?1, 1, ?1, ?2, 'none', ?2, 0)";
        let path = "insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                    registered_at) values (?1, ?2, 'x', ?3, 0, '', 0)";
        database
            .write_raw(|transaction| {
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
    fn purge_all(database: &Database) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some(cache) = to_purge(database).unwrap() {
            let mut remove = |key: &str| {
                keys.push(key.to_owned());
                Ok(())
            };
            purge(database, cache, 1, &mut remove).unwrap();
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
        let freed = own_nars(&database, "b").unwrap();
        assert_eq!((freed.nar_count, freed.file_bytes), (1, 3));
        assert!(delete(&database, "b").unwrap().is_some());
        let is_there = |number| paths::exists(&database, b, HashPart::from_bytes([number; 20]));
        assert!(!is_there(1).unwrap() && !is_there(3).unwrap());
        assert_eq!(purge_all(&database), [key(3)]);
        assert_eq!(delete(&database, "b").unwrap(), None);

        assert!(delete(&database, "a").unwrap().is_some());
        let mut expected = [key(1), key(2)];
        expected.sort();
        assert_eq!(purge_all(&database), expected);
        assert_eq!(all(&database).unwrap(), []);
    }

    #[test]
    fn a_deleted_cache_can_get_another_store_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (database, b) = database(dir.path());
        delete(&database, "b").unwrap();
        let other = add(&database, "b", "/other/store");
        assert!(
            matches!(other, Err(StorageError::StoreDir { .. })),
            "{other:?}"
        );
        purge_all(&database);
        assert_eq!(add(&database, "b", "/other/store").unwrap(), b);
    }
}
