//! Lists all rows, and checks and repairs them for `samovar fsck`, `import` and `export`.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, params};
use samovar_nix::{HashPart, StorePath};

use super::rows::{damaged, nar_columns, nar_of, path_of};
use super::{CacheId, Database, StoredNar, caches, collect};
use crate::error::StorageError;

/// Tables without a row for each path or NAR.
const SMALL_TABLES: [&str; 6] = ["meta", "cache", "token", "pin", "removed_pin", "push"];

/// The total length of the files that the paths of a row of `cache` use, each counted once.
const FILE_BYTES: &str = "(select coalesce(sum(file_size), 0) from nar where id in \
     (select nar_id from path where cache_id = cache.id))";

/// The total length of what the row of `cache` has besides the files of NARs.
const EXTRA_BYTES: &str = "(\
     (select coalesce(sum(own_bytes), 0) from path where cache_id = cache.id) \
     + (select coalesce(sum(4096 + length(key) + length(body) + length(sigs)), 0) \
        from extra where cache_id = cache.id) \
     + (select coalesce(sum(4096 + size), 0) from log where cache_id = cache.id))";

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

/// Returns at most `count_max` NARs whose row numbers are higher than `id`, in the order of
/// their rows.
pub(crate) fn nars_after(
    database: &Database,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    database.read_raw(|connection| {
        nars(
            connection,
            "id > ?1 order by id limit ?2",
            &[id, count_max.into()],
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
    database.read_raw(|connection| {
        let condition = "path.id > ?1 order by path.id limit ?2";
        paths(connection, condition, &[id, count_max.into()])
    })
}

/// Returns the NARs of the newest `count_max` paths, without those that are lost. Needs schema 2.
pub(crate) fn newest_nars(
    database: &Database,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    let condition = "state <> 3 and id in \
                     (select nar_id from path order by id desc limit ?1) order by id";
    database.read_raw(|connection| nars(connection, condition, &[count_max.into()]))
}

/// Returns the newest `count_max` paths of a cache, without those whose NAR is lost. Needs
/// schema 2.
pub(crate) fn newest_paths(
    database: &Database,
    cache: CacheId,
    count_max: u32,
) -> Result<Vec<ListedPath>, StorageError> {
    database.read_raw(|connection| {
        let condition = "cache_id = ?1 and state <> 3 order by path.id desc limit ?2";
        paths(connection, condition, &[cache.0, count_max.into()])
    })
}

/// Returns the paths of all caches that use a NAR.
pub(crate) fn paths_of_nar(
    database: &Database,
    nar_id: i64,
) -> Result<Vec<ListedPath>, StorageError> {
    database.read_raw(|connection| paths_of_nar_in(connection, nar_id))
}

/// Records in one transaction that a NAR is lost (`true`) or intact (`false`). Returns whether
/// anything was changed: nothing is if the row does not exist or records the same already, or
/// if `is_unchanged`, which is called in the transaction, returns `false`. For each path of the
/// mirrored cache whose NAR is lost, calls `remove_mirror`.
pub(crate) fn set_lost(
    database: &Database,
    nar_id: i64,
    is_lost: bool,
    is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
    remove_mirror: &mut dyn FnMut(HashPart) -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    database.write_raw(|transaction| {
        if !is_unchanged()? {
            return Ok(false);
        }
        let state = if is_lost { 3 } else { 1 };
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
            if mirrored == Some(path.cache) {
                remove_mirror(path.path.hash_part())?;
            }
        }
        Ok(true)
    })
}

/// Returns whether no NAR uses the object with this key, and its deletion is not already in
/// progress.
pub(crate) fn is_orphan(database: &Database, object_key: &str) -> Result<bool, StorageError> {
    database.read_raw(|connection| is_orphan_in(connection, object_key))
}

/// Records those of these keys that no NAR uses as garbage, in one transaction. Returns them.
pub(crate) fn discard(database: &Database, keys: &[String]) -> Result<Vec<String>, StorageError> {
    database.write_raw(|transaction| {
        let now = database.now();
        let mut discarded = Vec::new();
        for key in keys {
            if is_orphan_in(transaction, key)? {
                collect::discard(transaction, key, now)?;
                discarded.push(key.clone());
            }
        }
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
    database.read_raw(|connection| {
        for table in SMALL_TABLES {
            let mut statement = connection.prepare(&format!("pragma integrity_check({table})"))?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            for fault in rows {
                match fault? {
                    fault if fault == "ok" => {}
                    fault => return Err(damaged(&fault)),
                }
            }
        }
        Ok(())
    })
}

/// Recomputes the total length of the files of each cache, which triggers keep current. Returns
/// a description of each one that is wrong. `repairs`: also corrects them.
pub(crate) fn wrong_totals(
    database: &Database,
    repairs: bool,
) -> Result<Vec<String>, StorageError> {
    match repairs {
        false => database.read_raw(wrong_in),
        true => database.write_raw(|transaction| {
            let wrong = wrong_in(transaction)?;
            let update =
                format!("update cache set file_bytes = {FILE_BYTES}, extra_bytes = {EXTRA_BYTES}");
            transaction.execute(&update, [])?;
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
    database.read_raw(|connection| Ok(faults_in(connection, deep, count_max)?))
}

/// Like [`faults`] without `deep`, for at most this time. Also returns whether the check was
/// complete.
pub(crate) fn faults_within(
    database: &Database,
    time_max: Duration,
    count_max: u32,
) -> Result<(Vec<String>, bool), StorageError> {
    database.read_raw(|connection| {
        let interrupt = connection.get_interrupt_handle();
        let (done, is_done) = mpsc::channel::<()>();
        let timer = thread::spawn(move || {
            if is_done.recv_timeout(time_max) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let found = faults_in(connection, false, count_max);
        drop(done);
        // Ignore the result: the timer cannot panic. Wait for its thread, which must not interrupt
        // a later query.
        timer.join().ok();
        match found {
            Ok(faults) => Ok((faults, true)),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
                Ok((Vec::new(), false))
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
                Ok((vec![error.to_string()], true))
            }
            Err(error) => Err(error.into()),
        }
    })
}

fn paths_of_nar_in(connection: &Connection, nar_id: i64) -> Result<Vec<ListedPath>, StorageError> {
    paths(connection, "nar_id = ?1 order by path.id", &[nar_id])
}

fn nars(
    connection: &Connection,
    condition: &str,
    parameters: &[i64],
) -> Result<Vec<ListedNar>, StorageError> {
    let columns = nar_columns!();
    let query = format!("select {columns}, state = 3 from nar where {condition}");
    let mut statement = connection.prepare_cached(&query)?;
    let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut nars = Vec::new();
    while let Some(row) = rows.next()? {
        nars.push(ListedNar {
            nar: nar_of(row)?,
            is_lost: row.get(7)?,
        });
    }
    Ok(nars)
}

fn paths(
    connection: &Connection,
    condition: &str,
    parameters: &[i64],
) -> Result<Vec<ListedPath>, StorageError> {
    let mut statement = connection.prepare_cached(&format!(
        "select path.id, cache_id, cache.name, hash_part, path.name, state = 3 \
         from path join cache on cache.id = cache_id join nar on nar.id = nar_id \
         where {condition}"
    ))?;
    let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut paths = Vec::new();
    while let Some(row) = rows.next()? {
        paths.push(ListedPath {
            id: row.get(0)?,
            cache: CacheId(row.get(1)?),
            cache_name: row.get(2)?,
            path: path_of(HashPart::from_bytes(row.get(3)?), &row.get::<_, String>(4)?)?,
            is_lost: row.get(5)?,
        });
    }
    Ok(paths)
}

fn is_orphan_in(connection: &Connection, key: &str) -> Result<bool, StorageError> {
    let mut statement = connection.prepare_cached(
        "select not exists (select 1 from nar where object_key = ?1) \
         and not exists (select 1 from garbage where object_key = ?1 and done_at is null)",
    )?;
    Ok(statement.query_row([key], |row| row.get(0))?)
}

fn wrong_in(connection: &Connection) -> Result<Vec<String>, StorageError> {
    let query = format!(
        "select 'the size of the cache ' || name || ' is recorded as ' || recorded \
             || ' bytes, but its ' || what || ' have ' || actual \
         from (select name, 'files' as what, file_bytes as recorded, {FILE_BYTES} as actual \
               from cache \
               union all select name, 'logs, realisations and narinfos', extra_bytes, \
               {EXTRA_BYTES} from cache) \
         where recorded <> actual"
    );
    let mut statement = connection.prepare(&query)?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn faults_in(connection: &Connection, deep: bool, count_max: u32) -> rusqlite::Result<Vec<String>> {
    let check = if deep { "integrity" } else { "quick" };
    let mut statement = connection.prepare(&format!("pragma {check}_check({count_max})"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut faults: Vec<String> = rows.collect::<Result<_, _>>()?;
    faults.retain(|fault| fault != "ok");
    let queries = [
        // Without the table `reference`, whose rows have no number.
        // Rows of some other tables have no number, either.
        "select coalesce('row ' || rowid, 'a row') || ' of the table ' || \"table\" \
         || ' needs a missing row of ' || parent from pragma_foreign_key_check \
         where \"table\" <> 'reference' limit ?1",
        "select coalesce(path.name, 'a missing path') || ' (row ' || referrer || \
         ') refers to row ' || reference || ', which is missing or of another cache' \
         from reference left join path on path.id = referrer \
         left join path as target on target.id = reference \
         where path.cache_id is null or target.cache_id is not path.cache_id limit ?1",
    ];
    for query in queries {
        let mut statement = connection.prepare(query)?;
        let rows = statement.query_map([count_max], |row| row.get(0))?;
        for fault in rows {
            faults.push(fault?);
        }
    }
    Ok(faults)
}
