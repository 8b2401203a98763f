//! The caches of a storage: lists, creates and deletes them.
//!
//! A cache is deleted in two stages. [`delete`] hides its paths in one transaction. `purge` then
//! deletes their rows, a few at a time, so that uploads into other caches do not wait. NARs that no
//! other cache uses are left to the collector.

use samovar_nix::{HashPart, StoreDir};

use super::rows::{damaged, is_shown, unsigned};
use super::{CacheId, Database};
use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::objects::Removal;
use crate::sql::{Change, Connection, Transaction, Value, params};

/// Condition for valid tokens that are restricted to one cache. `?1`: the present time.
const VALID: &str = "token.cache not like '%*%' and token.cache not like '%?%' \
                     and revoked_at is null and (expires_at is null or expires_at > ?1)";

/// The row number of the mirrored cache, as an SQL expression; null if there is none.
macro_rules! mirrored_id {
    () => {
        "(select cast(value as bigint) from meta where meta.key = 'mirrored-cache')"
    };
}
pub(super) use mirrored_id;

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
    database.read(|connection| all_in(connection, database.now()))
}

/// Returns the number of paths in a cache. Scans an index, which takes about 30 ms for a
/// million paths.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn path_count(database: &Database, cache: CacheId) -> Result<u64, StorageError> {
    database.read(|connection| {
        let query = concat!(
            "select count(*) from path where cache_id = ?1 and ",
            is_shown!("?1")
        );
        unsigned(connection.row(query, params![cache], |row| row.get(0))?)
    })
}

/// Returns the NARs that only paths of this cache use.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn own_nars(database: &Database, name: &str) -> Result<Freed, StorageError> {
    database.read(|connection| {
        let query = "select count(*), cast(coalesce(sum(file_size), 0) as bigint) \
             from cache as its join nar on nar.id in \
                 (select nar_id from path where cache_id = its.id) \
             where its.name = ?1 and not exists \
                 (select 1 from path where nar_id = nar.id and cache_id <> its.id)";
        connection.row(query, params![name], |row| {
            Ok(Freed {
                nar_count: unsigned(row.get(0)?)?,
                file_bytes: unsigned(row.get(1)?)?,
            })
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
    database.write(|transaction| {
        let now = database.now();
        let hidden = transaction.optional(
            "update cache set deletion = 1 where name = ?1 and deletion <> 2 returning id",
            params![name],
            |row| row.get(0),
        )?;
        let pin_count = transaction.execute(
            "delete from pin where cache_id = (select id from cache where name = ?1)",
            params![name],
        )?;
        let revoke = format!("update token set revoked_at = ?1 where cache = ?2 and {VALID}");
        let token_count = transaction.execute(&revoke, params![now, name])?;
        if let Some(cache) = hidden {
            transaction.note(Change::CacheChanged(cache));
            transaction.note(Change::PinsChanged(cache));
        }
        if token_count > 0 {
            transaction.note(Change::TokensChanged);
        }
        Ok(
            (hidden.is_some() || token_count > 0).then_some(DeletedCache {
                pin_count,
                token_count,
            }),
        )
    })
}

/// Returns a cache whose paths are hidden and not deleted yet, or `None` if there is none.
pub(crate) fn to_purge(database: &Database) -> Result<Option<CacheId>, StorageError> {
    database.read(|connection| {
        let query = "select id from cache where deletion = 1 limit 1";
        connection.optional(query, &[], |row| row.get(0))
    })
}

/// Deletes at most `count_max` paths or realisations of a hidden cache, in one transaction in
/// which `mirror` receives the key of each of their files beside the objects. If
/// none is left, records that the deletion of the cache is complete.
///
/// # Errors
///
/// Any [`StorageError`]. No row is deleted then.
pub(crate) fn purge(
    database: &Database,
    cache: CacheId,
    count_max: u32,
    mirror: &mut dyn Removal,
) -> Result<(), StorageError> {
    database.write(|transaction| {
        mirror.begin();
        // Another process may have completed the deletion, and an upload may have followed.
        let is_hidden: bool = transaction.row(
            "select exists (select 1 from cache where id = ?1 and deletion = 1)",
            params![cache],
            |row| row.get(0),
        )?;
        if !is_hidden
            || purge_realisations(transaction, cache, count_max, mirror)?
            || purge_paths(transaction, cache, count_max, mirror)?
        {
            return Ok(());
        }
        for statement in [
            "delete from log where cache_id = ?1",
            "delete from removed_pin where cache_id = ?1",
            "update cache set deletion = 2 where id = ?1",
        ] {
            transaction.execute(statement, params![cache])?;
        }
        transaction.note(Change::CacheChanged(cache));
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
    database.read(mirrored_in)
}

/// Returns the cache with this name, or `None` if it does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn find(database: &Database, name: &str) -> Result<Option<CacheRow>, StorageError> {
    database.read(|connection| select(connection, "?1 and deletion = 0", params![name]))
}

/// Returns the name of a cache that has a path with this hash part.
pub(crate) fn of_path(
    database: &Database,
    hash_part: HashPart,
) -> Result<Option<String>, StorageError> {
    database.read(|connection| {
        let query = "select name from cache where deletion = 0 and exists (select 1 from path \
                     where cache_id = cache.id and hash_part = ?1)";
        connection.optional(query, params![hash_part.as_bytes()], |row| row.get(0))
    })
}

/// Returns the names of all caches that are not deleted.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn names(database: &Database) -> Result<Vec<String>, StorageError> {
    database.read(|connection| {
        let query = "select name from cache where deletion = 0";
        connection.rows(query, &[], |row| row.get(0))
    })
}

/// Returns the cache with this name. Creates it if it does not exist.
///
/// # Errors
///
/// [`StorageError::StoreDir`] if the cache exists with another store directory. Other errors.
pub fn add(database: &Database, name: &str, store_dir: &str) -> Result<CacheId, StorageError> {
    database.write(|transaction| {
        let added = transaction.execute(
            "insert into cache (name, store_dir, created_at) values (?1, ?2, ?3) \
             on conflict (name) do nothing",
            params![name, store_dir, database.now()],
        )?;
        // A deleted cache has no paths, so it may get another store directory.
        transaction.execute(
            "update cache set store_dir = ?2 where name = ?1 and deletion = 2",
            params![name, store_dir],
        )?;
        let query = "select id, store_dir from cache where name = ?1";
        let (id, stored): (CacheId, String) =
            transaction.row(query, params![name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if stored != store_dir {
            return Err(StorageError::StoreDir {
                stored,
                served: store_dir.to_owned(),
            });
        }
        if added > 0 {
            transaction.note(Change::CacheChanged(id));
        }
        Ok(id)
    })
}

/// Records that the narinfos of this cache are also written into the directory.
pub(crate) fn set_mirrored(database: &Database, cache: CacheId) -> Result<(), StorageError> {
    let id = cache.0.to_string();
    database.write(|transaction| {
        let changed = transaction.execute(
            "insert into meta (key, value) values ('mirrored-cache', ?1) \
             on conflict (key) do update set value = excluded.value \
             where meta.value <> excluded.value",
            params![&id],
        )?;
        if changed > 0 {
            transaction.note(Change::MirroredChanged);
        }
        Ok(())
    })
}

/// Records that no cache is mirrored.
pub(crate) fn clear_mirrored(database: &Database) -> Result<(), StorageError> {
    if mirrored(database)?.is_none() {
        return Ok(());
    }
    database.write(|transaction| {
        transaction.execute("delete from meta where key = 'mirrored-cache'", &[])?;
        transaction.note(Change::MirroredChanged);
        Ok(())
    })
}

pub(crate) fn all_in(
    connection: &Connection<'_>,
    now: i64,
) -> Result<Vec<CacheSummary>, StorageError> {
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
    connection.rows(&query, params![now], |row| {
        Ok(CacheSummary {
            name: row.get(0)?,
            used_bytes: unsigned(row.get(1)?)?,
            path_count: unsigned(row.get(2)?)?,
            pin_count: unsigned(row.get(3)?)?,
            token_count: unsigned(row.get(4)?)?,
            uploaded_at: row.get(5)?,
            is_hidden: row.get(6)?,
        })
    })
}

/// Deletes realisations of a hidden cache. Returns whether there were any.
fn purge_realisations(
    transaction: &Transaction<'_>,
    cache: CacheId,
    count_max: u32,
    mirror: &mut dyn Removal,
) -> Result<bool, StorageError> {
    let query = concat!(
        "select key, exists (select 1 from extra as other where cache_id = ",
        mirrored_id!(),
        " and cache_id <> ?1 and other.key = extra.key) from extra where cache_id = ?1 limit ?2"
    );
    let params = params![cache, count_max];
    let keys: Vec<(String, bool)> =
        transaction.rows(query, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (key, is_of_mirrored) in &keys {
        let delete = "delete from extra where cache_id = ?1 and key = ?2";
        transaction.execute(delete, params![cache, key])?;
        if !is_of_mirrored {
            mirror.remove(key)?;
        }
    }
    Ok(!keys.is_empty())
}

/// Deletes paths of a hidden cache. Returns whether there were any.
fn purge_paths(
    transaction: &Transaction<'_>,
    cache: CacheId,
    count_max: u32,
    mirror: &mut dyn Removal,
) -> Result<bool, StorageError> {
    // The directory has the narinfos of the mirrored cache, which may be another one by now.
    let query = concat!(
        "select id, hash_part, exists (select 1 from path as other where cache_id = ",
        mirrored_id!(),
        " and cache_id <> ?1 and other.hash_part = path.hash_part) \
         from path where cache_id = ?1 limit ?2"
    );
    let params = params![cache, count_max];
    let paths: Vec<(i64, HashPart, bool)> = transaction.rows(query, params, |row| {
        Ok((row.get(0)?, HashPart::from_bytes(row.get(1)?), row.get(2)?))
    })?;
    let has_any = !paths.is_empty();
    for (id, hash_part, is_of_mirrored) in paths {
        // All paths of the cache are deleted, so the order of references does not matter.
        for statement in [
            "delete from pin where path_id = ?1",
            "delete from reference where reference = ?1",
            "delete from path where id = ?1",
        ] {
            transaction.execute(statement, params![id])?;
        }
        transaction.note(Change::PathRemoved(cache, hash_part));
        if !is_of_mirrored {
            mirror.remove(&narinfo_key(hash_part))?;
        }
    }
    Ok(has_any)
}

/// Returns whether uploads into a cache may be published. If the deletion of the cache is complete,
/// creates the cache again.
pub(super) fn restore(transaction: &Transaction<'_>, cache: CacheId) -> Result<bool, StorageError> {
    let deletion = deletion(transaction, cache)?;
    if deletion == 2 {
        let update = "update cache set deletion = 0 where id = ?1";
        transaction.execute(update, params![cache])?;
        transaction.note(Change::CacheChanged(cache));
    }
    Ok(deletion != 1)
}

/// Returns the state of the deletion of a cache. 0: none; 1: in progress; 2: complete.
pub(super) fn deletion(connection: &Connection<'_>, cache: CacheId) -> Result<i64, StorageError> {
    let query = "select deletion from cache where id = ?1";
    connection.row(query, params![cache], |row| row.get(0))
}

pub(super) fn mirrored_in(connection: &Connection<'_>) -> Result<Option<CacheRow>, StorageError> {
    let mirrored = concat!("(select name from cache where id = ", mirrored_id!(), ")");
    select(connection, mirrored, &[])
}

/// Returns the cache whose name is the value of an SQL expression.
fn select(
    connection: &Connection<'_>,
    name: &str,
    params: &[Value<'_>],
) -> Result<Option<CacheRow>, StorageError> {
    let query = format!("select id, name, store_dir from cache where name = {name}");
    connection.optional(&query, params, |row| {
        let dir: &str = row.get(2)?;
        Ok(CacheRow {
            id: row.get(0)?,
            name: row.get(1)?,
            store_dir: StoreDir::new(dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?,
        })
    })
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
                   object_key, created_at) values (?1, 1, ?1, ?2, 'none', ?3, 0)";
        let path = "insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                    registered_at) values (?1, ?2, 'x', ?3, 0, '', 0)";
        database
            .write(|transaction| {
                for number in [1_u8, 2, 3] {
                    let (size, key) = (i64::from(number), number.to_string());
                    transaction.execute(nar, params![&[number; 32], size, &key])?;
                }
                for (cache, number) in [(a, 1_u8), (a, 2), (b, 1), (b, 3)] {
                    let nar = i64::from(number);
                    transaction.execute(path, params![cache, &[number; 20], nar])?;
                }
                transaction.execute("insert into reference values (4, 3)", &[])?;
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
