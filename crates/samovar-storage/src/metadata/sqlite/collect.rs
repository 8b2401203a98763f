//! Statements that record uses, and the statements of the collector.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::{HashPart, StorePath};

use super::rows::{damaged, path_of, unsigned};
use super::{check, paths};
use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::metadata::{CacheId, Graph, GraphPath, Times, Uses};

/// Time of a condemnation whose commit may not have returned yet. Look-ups that began before the
/// commit do not revive the path, so the time until deletion is counted from
/// [`confirm`](crate::metadata::Metadata::confirm), which replaces this value by the actual time.
const UNCONFIRMED: i64 = i64::MAX;

/// Condition for NARs that no path uses and that no client has sent after `?1`.
macro_rules! is_loose {
    () => {
        "not exists (select 1 from path where nar_id = nar.id) and created_at <= ?1 and \
         not exists (select 1 from sent where nar_id = nar.id and sent_at > ?1)"
    };
}

pub(super) fn record_uses(
    transaction: &Transaction<'_>,
    uses: &Uses,
    now: i64,
) -> Result<(), StorageError> {
    for id in &uses.paths {
        paths::record_use(transaction, *id, now)?;
    }
    for (cache, nar) in &uses.nars {
        paths::record_nar_use(transaction, *cache, *nar, now)?;
    }
    Ok(())
}

pub(super) fn graph(
    connection: &Connection,
    time: &Times<'_>,
    now: i64,
) -> Result<Graph, StorageError> {
    // All queries read the same snapshot.
    let transaction = connection.unchecked_transaction()?;
    let mut graph = Graph::default();
    let mut cache_ids = Vec::new();
    let mut statement = transaction.prepare("select id, name from cache order by id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        cache_ids.push(row.get::<_, i64>(0)?);
        graph.caches.push(row.get(1)?);
    }
    let mut statement = transaction.prepare(
        "select path.id, cache_id, nar_id, file_size, used_at, registered_at, \
         condemned_at is not null, path.name from path join nar on nar.id = nar_id \
         order by path.id",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let cache = position(&cache_ids, &row.get(1)?)?;
        let name = row.get_ref(7)?.as_str().unwrap_or_default();
        graph.paths.push(GraphPath {
            id: row.get(0)?,
            cache,
            retention: time(&graph.caches[cache as usize], name),
            nar_id: row.get(2)?,
            file_size: unsigned(row.get(3)?)?,
            used_at: row.get(4)?,
            registered_at: row.get(5)?,
            is_condemned: row.get(6)?,
        });
    }
    let ids: Vec<i64> = graph.paths.iter().map(|path| path.id).collect();
    let mut statement =
        transaction.prepare("select referrer, reference from reference order by referrer")?;
    let mut rows = statement.query([])?;
    graph.starts.push(0);
    while let Some(row) = rows.next()? {
        let referrer = position(&ids, &row.get(0)?)? as usize;
        close_until(&mut graph, referrer)?;
        graph.references.push(position(&ids, &row.get(1)?)?);
    }
    close_until(&mut graph, ids.len())?;
    let mut statement = transaction
        .prepare("select path_id from pin where expires_at is null or expires_at > ?1")?;
    let mut rows = statement.query([now])?;
    while let Some(row) = rows.next()? {
        graph.pinned.push(position(&ids, &row.get(0)?)?);
    }
    Ok(graph)
}

/// Sets the end of the list of references for all paths before `index` that have none yet.
fn close_until(graph: &mut Graph, index: usize) -> Result<(), StorageError> {
    let end = u32::try_from(graph.references.len());
    let end = end.map_err(|_too_many| damaged("more than 4294967295 references"))?;
    graph.starts.resize(index + 1, end);
    Ok(())
}

/// Returns the index of a row number in a sorted list.
fn position(ids: &[i64], id: &i64) -> Result<u32, StorageError> {
    let position = ids.binary_search(id).ok();
    let position = position.and_then(|position| u32::try_from(position).ok());
    position.ok_or_else(|| damaged(&format!("row {id} is missing")))
}

pub(super) fn store_path(
    connection: &Connection,
    id: i64,
) -> Result<Option<StorePath>, StorageError> {
    let mut statement =
        connection.prepare_cached("select hash_part, name from path where id = ?1")?;
    let row: Option<([u8; 20], String)> = statement
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(hash_part, name)| path_of(HashPart::from_bytes(hash_part), &name))
        .transpose()
}

pub(super) fn condemn_paths(
    transaction: &Transaction<'_>,
    ids: &[i64],
    is_condemned: bool,
) -> Result<(), StorageError> {
    let condemned_at = is_condemned.then_some(UNCONFIRMED);
    let mut statement = transaction.prepare_cached(
        "update path set condemned_at = ?2 where id = ?1 \
         and (condemned_at is null) = (?2 is not null)",
    )?;
    for id in ids {
        statement.execute(params![id, condemned_at])?;
    }
    Ok(())
}

pub(super) fn confirm(
    transaction: &Transaction<'_>,
    count_max: u32,
    now: i64,
) -> Result<bool, StorageError> {
    let queries = [
        "update path set condemned_at = ?2 where id in \
             (select id from path where condemned_at = ?1 limit ?3)",
        "update nar set state_at = ?2 where id in \
             (select id from nar where state <> 1 and state_at = ?1 limit ?3)",
    ];
    let mut is_complete = true;
    for query in queries {
        let mut statement = transaction.prepare_cached(query)?;
        is_complete &=
            statement.execute(params![UNCONFIRMED, now, count_max])? < count_max as usize;
    }
    Ok(is_complete)
}

pub(super) fn condemned_paths(
    connection: &Connection,
    before: i64,
) -> Result<Vec<i64>, StorageError> {
    // References are published before their referrers, so their row numbers are smaller.
    ids(
        connection,
        "select id from path where condemned_at <= ?1 order by id desc",
        &[before],
    )
}

pub(super) fn delete_paths(
    transaction: &Transaction<'_>,
    ids: &[i64],
    before: i64,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    let mirrored = check::mirrored_cache(transaction)?.map(|cache| cache.id.0);
    let mut statement = transaction.prepare_cached(
        "delete from path where id = ?1 and condemned_at <= ?2 \
         and not exists (select 1 from reference where reference = path.id) \
         and not exists (select 1 from pin where path_id = path.id) \
         returning cache_id, hash_part",
    )?;
    let mut deleted = Vec::new();
    for id in ids {
        let realisations = match mirrored {
            Some(_) => realisations(transaction, *id)?,
            None => Vec::new(),
        };
        let row = statement
            .query_row(params![id, before], |row| {
                Ok((row.get(0)?, HashPart::from_bytes(row.get(1)?)))
            })
            .optional()?;
        let Some((cache, hash_part)) = row else {
            continue;
        };
        if mirrored == Some(cache) {
            for key in realisations {
                remove_mirror(&key)?;
            }
            remove_mirror(&narinfo_key(hash_part))?;
        }
        deleted.push((CacheId(cache), hash_part));
    }
    Ok(deleted)
}

/// Returns the keys of the realisations whose output is this path.
fn realisations(connection: &Connection, path: i64) -> Result<Vec<String>, StorageError> {
    let mut statement = connection.prepare_cached("select key from extra where path_id = ?1")?;
    let rows = statement.query_map([path], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn loose_nars(
    connection: &Connection,
    sent_before: i64,
    before: Option<i64>,
) -> Result<Vec<i64>, StorageError> {
    match before {
        Some(before) => ids(
            connection,
            concat!(
                "select id from nar where state = 2 and state_at <= ?2 and ",
                is_loose!()
            ),
            &[sent_before, before],
        ),
        None => ids(
            connection,
            concat!("select id from nar where state <> 2 and ", is_loose!()),
            &[sent_before],
        ),
    }
}

pub(super) fn condemn_nars(
    transaction: &Transaction<'_>,
    ids: &[i64],
    sent_before: i64,
) -> Result<usize, StorageError> {
    let mut statement = transaction.prepare_cached(concat!(
        "update nar set state = 2, state_at = ?3 where id = ?2 and state <> 2 and ",
        is_loose!()
    ))?;
    let mut count = 0;
    for id in ids {
        count += statement.execute(params![sent_before, id, UNCONFIRMED])?;
    }
    Ok(count)
}

pub(super) fn delete_nars(
    transaction: &Transaction<'_>,
    ids: &[i64],
    sent_before: i64,
    before: i64,
    now: i64,
) -> Result<Vec<u64>, StorageError> {
    let mut delete = transaction.prepare_cached(concat!(
        "delete from nar where id = ?2 and state = 2 and state_at <= ?3 and ",
        is_loose!(),
        " returning object_key, file_size"
    ))?;
    let mut sizes = Vec::new();
    for id in ids {
        let row: Option<(String, i64)> = delete
            .query_row(params![sent_before, id, before], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        if let Some((key, size)) = row {
            discard(transaction, &key, now)?;
            sizes.push(unsigned(size)?);
        }
    }
    Ok(sizes)
}

/// Records the key of an object as garbage.
pub(super) fn discard(connection: &Connection, key: &str, now: i64) -> Result<(), StorageError> {
    connection
        .prepare_cached("insert or replace into garbage values (?1, ?2, null)")?
        .execute(params![key, now])?;
    Ok(())
}

pub(super) fn garbage(connection: &Connection) -> Result<Vec<String>, StorageError> {
    let mut statement =
        connection.prepare_cached("select object_key from garbage where done_at is null")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn set_removed(
    transaction: &Transaction<'_>,
    keys: &[String],
    now: i64,
) -> Result<(), StorageError> {
    let mut statement =
        transaction.prepare_cached("update garbage set done_at = ?2 where object_key = ?1")?;
    for key in keys {
        statement.execute(params![key, now])?;
    }
    Ok(())
}

pub(super) fn is_garbage(connection: &Connection, key: &str) -> Result<bool, StorageError> {
    let mut statement =
        connection.prepare_cached("select exists (select 1 from garbage where object_key = ?1)")?;
    Ok(statement.query_row([key], |row| row.get(0))?)
}

pub(super) fn free_keys(connection: &Connection, before: i64) -> Result<(), StorageError> {
    connection.execute("delete from garbage where done_at <= ?1", [before])?;
    Ok(())
}

fn ids(connection: &Connection, query: &str, parameters: &[i64]) -> Result<Vec<i64>, StorageError> {
    let mut statement = connection.prepare_cached(query)?;
    let parameters = rusqlite::params_from_iter(parameters);
    let rows = statement.query_map(parameters, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
