//! Lists all rows, and checks and repairs them for `samovar fsck`, `import` and `export`.

use std::time::Duration;

use samovar_nix::{HashPart, StorePath};

use super::rows::{nar_columns, nar_of, path_of};
use super::{CacheId, Database, StoredNar, caches, collect};
use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::objects::Removal;
use crate::sql::{Change, Connection, Value, params};

/// The total length of the files that the paths of a row of `cache` use, each counted once.
const FILE_BYTES: &str = "(select cast(coalesce(sum(file_size), 0) as bigint) from nar where id in \
     (select nar_id from path where cache_id = cache.id))";

/// The total length of what the row of `cache` has besides the files of NARs.
const EXTRA_BYTES: &str = "cast(\
     (select coalesce(sum(own_bytes), 0) from path where cache_id = cache.id) \
     + (select coalesce(sum(4096 + length(key) + length(body) + length(sigs)), 0) \
        from extra where cache_id = cache.id) \
     + (select coalesce(sum(4096 + size), 0) from log where cache_id = cache.id) \
     as bigint)";

/// A NAR in a list of all NARs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNar {
    /// The NAR and its file.
    pub nar: StoredNar,
    /// Whether the NAR's object is known to be missing or damaged.
    pub is_lost: bool,
}

/// A path in a list of all paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPath {
    /// Row number of the path.
    pub id: i64,
    /// Identifier of the path's cache.
    pub cache: CacheId,
    /// Name of the path's cache.
    pub cache_name: String,
    /// The store path that the row describes.
    pub path: StorePath,
    /// Whether the path's NAR is lost.
    pub is_lost: bool,
}

/// Returns whether the storage has any file of a NAR that is not recorded as lost.
pub(crate) fn has_files(database: &Database) -> Result<bool, StorageError> {
    let query = "select count(*) from (select 1 from nar where state <> 3 limit 1) as one";
    let count: i64 = database.read(|connection| connection.row(query, &[], |row| row.get(0)))?;
    Ok(count > 0)
}

/// Returns at most `count_max` NARs whose row numbers are higher than `id`, in the order of
/// their rows.
pub(crate) fn nars_after(
    database: &Database,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    database.read(|connection| {
        nars(
            connection,
            "id > ?1 order by id limit ?2",
            params![id, count_max],
        )
    })
}

/// Returns at most `count_max` paths of all caches whose row numbers are higher than `id`, in
/// the order of their rows. A path comes after its references.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn paths_after(
    database: &Database,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedPath>, StorageError> {
    database.read(|connection| {
        let condition = "path.id > ?1 order by path.id limit ?2";
        paths(connection, condition, params![id, count_max])
    })
}

/// Returns the NARs of the newest `count_max` paths, without those that are lost. Needs schema 2.
pub(crate) fn newest_nars(
    database: &Database,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    let condition = "state <> 3 and id in \
                     (select nar_id from path order by id desc limit ?1) order by id";
    database.read(|connection| nars(connection, condition, params![count_max]))
}

/// Returns the newest `count_max` paths of a cache, without those whose NAR is lost. Needs
/// schema 2.
pub(crate) fn newest_paths(
    database: &Database,
    cache: CacheId,
    count_max: u32,
) -> Result<Vec<ListedPath>, StorageError> {
    database.read(|connection| {
        let condition = "cache_id = ?1 and state <> 3 order by path.id desc limit ?2";
        paths(connection, condition, params![cache, count_max])
    })
}

/// Returns the paths of all caches that use a NAR.
pub(crate) fn paths_of_nar(
    database: &Database,
    nar_id: i64,
) -> Result<Vec<ListedPath>, StorageError> {
    database.read(|connection| paths_of_nar_in(connection, nar_id))
}

/// Records in one transaction that a NAR is lost (`true`) or intact (`false`). Returns whether
/// anything was changed: nothing is if the row does not exist or records the same already, or
/// if `is_unchanged`, which is called in the transaction, returns `false`. `mirror`
/// receives the key of the narinfo of each path of the mirrored cache whose NAR is lost.
pub(crate) fn set_lost(
    database: &Database,
    nar_id: i64,
    is_lost: bool,
    is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
    mirror: &mut dyn Removal,
) -> Result<bool, StorageError> {
    database.write(|transaction| {
        mirror.begin();
        if !is_unchanged()? {
            return Ok(false);
        }
        let state: i64 = if is_lost { 3 } else { 1 };
        let changed = transaction.execute(
            "update nar set state = ?2, state_at = ?3 where id = ?1 and state <> ?2",
            params![nar_id, state, database.now()],
        )?;
        if changed == 0 {
            return Ok(false);
        }
        let mirrored = caches::mirrored_in(transaction)?.filter(|_| is_lost);
        let mirrored = mirrored.map(|cache| cache.id);
        for path in paths_of_nar_in(transaction, nar_id)? {
            transaction.note(Change::PathChanged(path.cache, path.path.hash_part()));
            if mirrored == Some(path.cache) {
                mirror.remove(&narinfo_key(path.path.hash_part()))?;
            }
        }
        Ok(true)
    })
}

/// Returns whether no NAR uses the object with this key, and its deletion is not already in
/// progress.
pub(crate) fn is_orphan(database: &Database, object_key: &str) -> Result<bool, StorageError> {
    database.read(|connection| is_orphan_in(connection, object_key))
}

/// Records those of these keys that no NAR uses as garbage, in one transaction. Returns them.
pub(crate) fn discard(database: &Database, keys: &[String]) -> Result<Vec<String>, StorageError> {
    database.write(|transaction| {
        let mut discarded = Vec::new();
        for key in keys {
            if is_orphan_in(transaction, key)? {
                discarded.push(key.clone());
            }
        }
        let keys = discarded.iter().map(String::as_str).collect();
        collect::discard(transaction, keys, database.now())?;
        Ok(discarded)
    })
}

/// Checks the tables and indexes that decide what is kept and who may do what: caches, tokens,
/// pins and pushes. They are small.
///
/// # Errors
///
/// [`StorageError::Damaged`] if one of them is damaged. Other errors.
pub(crate) fn small_tables(database: &Database) -> Result<(), StorageError> {
    database.read(|connection| connection.check_small_tables())
}

/// Recomputes the total length of the files of each cache, which triggers keep current. Returns
/// a description of each one that is wrong. `repairs`: also corrects them.
pub(crate) fn wrong_totals(
    database: &Database,
    repairs: bool,
) -> Result<Vec<String>, StorageError> {
    match repairs {
        false => database.read(wrong_in),
        true => database.write(|transaction| {
            let wrong = wrong_in(transaction)?;
            let update =
                format!("update cache set file_bytes = {FILE_BYTES}, extra_bytes = {EXTRA_BYTES}");
            transaction.execute(&update, &[])?;
            Ok(wrong)
        }),
    }
}

/// Checks the database. Returns at most `count_max` faults of its structure and of the
/// references between rows. With `deep`, also compares indexes with tables.
pub(crate) fn faults(
    database: &Database,
    deep: bool,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    database.read(|connection| faults_in(connection, deep, count_max))
}

/// Like [`faults`] without `deep`, for at most this time. Also returns whether the check was
/// complete.
pub(crate) fn faults_within(
    database: &Database,
    time_max: Duration,
    count_max: u32,
) -> Result<(Vec<String>, bool), StorageError> {
    let found = database
        .read(|connection| connection.within(time_max, || faults_in(connection, false, count_max)));
    match found {
        Ok(Some(faults)) => Ok((faults, true)),
        Ok(None) => Ok((Vec::new(), false)),
        Err(StorageError::Damaged(reason)) => Ok((vec![reason], true)),
        Err(error) => Err(error),
    }
}

fn paths_of_nar_in(
    connection: &Connection<'_>,
    nar_id: i64,
) -> Result<Vec<ListedPath>, StorageError> {
    paths(connection, "nar_id = ?1 order by path.id", params![nar_id])
}

fn nars(
    connection: &Connection<'_>,
    condition: &str,
    params: &[Value<'_>],
) -> Result<Vec<ListedNar>, StorageError> {
    let columns = nar_columns!();
    let query = format!("select {columns}, state = 3 from nar where {condition}");
    connection.rows(&query, params, |row| {
        Ok(ListedNar {
            nar: nar_of(row)?,
            is_lost: row.get(7)?,
        })
    })
}

fn paths(
    connection: &Connection<'_>,
    condition: &str,
    params: &[Value<'_>],
) -> Result<Vec<ListedPath>, StorageError> {
    let query = format!(
        "select path.id, cache_id, cache.name, hash_part, path.name, state = 3 \
         from path join cache on cache.id = cache_id join nar on nar.id = nar_id \
         where {condition}"
    );
    connection.rows(&query, params, |row| {
        Ok(ListedPath {
            id: row.get(0)?,
            cache: row.get(1)?,
            cache_name: row.get(2)?,
            path: path_of(HashPart::from_bytes(row.get(3)?), row.get(4)?)?,
            is_lost: row.get(5)?,
        })
    })
}

fn is_orphan_in(connection: &Connection<'_>, key: &str) -> Result<bool, StorageError> {
    let query = "select not exists (select 1 from nar where object_key = ?1) \
                 and not exists (select 1 from packed where pack = ?1) \
                 and not exists (select 1 from garbage where object_key = ?1 and done_at is null)";
    connection.row(query, params![key], |row| row.get(0))
}

fn wrong_in(connection: &Connection<'_>) -> Result<Vec<String>, StorageError> {
    let query = format!(
        "select name, what, recorded, actual \
         from (select name, 'files' as what, file_bytes as recorded, {FILE_BYTES} as actual \
               from cache \
               union all select name, 'logs, realisations and narinfos', extra_bytes, \
               {EXTRA_BYTES} from cache) as totals \
         where recorded <> actual"
    );
    connection.rows(&query, &[], |row| {
        let (name, what): (&str, &str) = (row.get(0)?, row.get(1)?);
        let (recorded, actual): (i64, i64) = (row.get(2)?, row.get(3)?);
        Ok(format!(
            "the size of the cache {name} is recorded as {recorded} bytes, but its {what} have \
             {actual}"
        ))
    })
}

fn faults_in(
    connection: &Connection<'_>,
    deep: bool,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    let mut faults = connection.structural_faults(deep, count_max)?;
    faults.extend(wrong_references(connection, count_max)?);
    Ok(faults)
}

/// Returns a description of each reference that leads out of its cache, at most `count_max`.
fn wrong_references(
    connection: &Connection<'_>,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    let query = "select path.name, referrer, reference \
         from reference left join path on path.id = referrer \
         left join path as target on target.id = reference where path.cache_id is null \
         or target.cache_id is distinct from path.cache_id limit ?1";
    connection.rows(query, params![count_max], |row| {
        let name: Option<&str> = row.get(0)?;
        let name = name.unwrap_or("a missing path");
        let (referrer, reference): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(format!(
            "{name} (row {referrer}) refers to row {reference}, which is missing or of another \
             cache"
        ))
    })
}
