//! Statements that list all rows, and those of the check of a storage.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::{HashPart, StoreDir};

use super::collect;
use super::rows::{damaged, nar_columns, nar_of, path_of};
use crate::error::StorageError;
use crate::metadata::{CacheId, ListedNar, ListedPath, MirroredCache};

pub(super) fn nars_after(
    connection: &Connection,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        ", state = 3 from nar where id > ?1 order by id limit ?2"
    ))?;
    let mut rows = statement.query(params![id, count_max])?;
    let mut nars = Vec::new();
    while let Some(row) = rows.next()? {
        nars.push(ListedNar {
            nar: nar_of(row)?,
            is_lost: row.get(7)?,
        });
    }
    Ok(nars)
}

pub(super) fn paths_after(
    connection: &Connection,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedPath>, StorageError> {
    let condition = "path.id > ?1 order by path.id limit ?2";
    paths(connection, condition, &[id, count_max.into()])
}

pub(super) fn paths_of_nar(
    connection: &Connection,
    nar_id: i64,
) -> Result<Vec<ListedPath>, StorageError> {
    paths(connection, "nar_id = ?1 order by path.id", &[nar_id])
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

pub(super) fn frames(
    connection: &Connection,
    nar_id: i64,
) -> Result<Option<Vec<u8>>, StorageError> {
    let mut statement = connection.prepare_cached("select frames from nar where id = ?1")?;
    let frames = statement.query_row([nar_id], |row| row.get(0)).optional()?;
    Ok(frames.flatten())
}

pub(super) fn set_frames(
    connection: &Connection,
    nar_id: i64,
    frames: Option<&[u8]>,
) -> Result<(), StorageError> {
    let update = "update nar set frames = ?2 where id = ?1";
    connection.execute(update, params![nar_id, frames])?;
    Ok(())
}

pub(super) fn set_lost(
    transaction: &Transaction<'_>,
    nar_id: i64,
    is_lost: bool,
    remove_mirror: &mut dyn FnMut(HashPart) -> Result<(), StorageError>,
    now: i64,
) -> Result<(), StorageError> {
    let state = if is_lost { 3 } else { 1 };
    transaction.execute(
        "update nar set state = ?2, state_at = ?3 where id = ?1",
        params![nar_id, state, now],
    )?;
    let mirrored = mirrored_cache(transaction)?.filter(|_| is_lost);
    let mirrored = mirrored.map(|cache| cache.id);
    for path in paths_of_nar(transaction, nar_id)? {
        if mirrored == Some(path.cache) {
            remove_mirror(path.path.hash_part())?;
        }
    }
    Ok(())
}

pub(super) fn mirrored_cache(
    connection: &Connection,
) -> Result<Option<MirroredCache>, StorageError> {
    let found: Option<(i64, String, String)> = connection
        .query_row(
            "select id, name, store_dir from cache where id = \
             (select cast(value as integer) from meta where key = 'mirrored-cache')",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let Some((id, name, dir)) = found else {
        return Ok(None);
    };
    let dir = StoreDir::new(&dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?;
    Ok(Some(MirroredCache {
        id: CacheId(id),
        name,
        store_dir: dir,
    }))
}

pub(super) fn is_orphan(connection: &Connection, key: &str) -> Result<bool, StorageError> {
    let mut statement = connection.prepare_cached(
        "select not exists (select 1 from nar where object_key = ?1) \
         and not exists (select 1 from garbage where object_key = ?1 and done_at is null)",
    )?;
    Ok(statement.query_row([key], |row| row.get(0))?)
}

pub(super) fn discard(
    transaction: &Transaction<'_>,
    keys: &[String],
    now: i64,
) -> Result<Vec<String>, StorageError> {
    let mut discarded = Vec::new();
    for key in keys {
        if is_orphan(transaction, key)? {
            collect::discard(transaction, key, now)?;
            discarded.push(key.clone());
        }
    }
    Ok(discarded)
}

pub(super) fn faults(
    connection: &Connection,
    deep: bool,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    let check = if deep { "integrity" } else { "quick" };
    let mut statement = connection.prepare(&format!("pragma {check}_check({count_max})"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut faults: Vec<String> = rows.collect::<Result<_, _>>()?;
    faults.retain(|fault| fault != "ok");
    let queries = [
        // Other tables than `reference`, whose rows have no number.
        "select 'row ' || rowid || ' of the table ' || \"table\" || ' needs a missing row of ' \
         || parent from pragma_foreign_key_check where \"table\" <> 'reference' limit ?1",
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
