//! Records uses, and runs the statements of the collector.

use rusqlite::{Connection, OptionalExtension as _, params};
use samovar_nix::{HashPart, StorePath};

use super::rows::{base_name, damaged, path_of, unsigned};
use super::{CacheId, Database, caches};
use crate::error::StorageError;
use crate::layout::{is_of_upstream, narinfo_key};

/// Time of a condemnation whose commit may not have returned yet. Look-ups that began before the
/// commit do not revive the path, so the time until deletion is counted from
/// [`confirm`], which replaces this value by the actual time.
const UNCONFIRMED: i64 = i64::MAX;

/// Condition for NARs that no path uses and that no client has sent after `?1`.
macro_rules! is_loose {
    () => {
        "not exists (select 1 from path where nar_id = nar.id) and created_at <= ?1 and \
         not exists (select 1 from sent where nar_id = nar.id and sent_at > ?1)"
    };
}

/// All paths of a storage with their references.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Names of the caches. [`GraphPath::cache`] is an index into them.
    pub caches: Vec<String>,
    /// The paths, in ascending order of their row numbers.
    pub paths: Vec<GraphPath>,
    /// The references of path `i` are `references[starts[i]..starts[i + 1]]`.
    pub starts: Vec<u32>,
    /// Indices into `paths` of the references of all paths, path by path.
    pub references: Vec<u32>,
    /// Indices into `paths` of the paths that have a valid pin.
    pub pinned: Vec<u32>,
}

/// A path of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphPath {
    /// Row number of the path.
    pub id: i64,
    /// Index into [`Graph::caches`].
    pub cache: u32,
    /// Row number of the path's NAR.
    pub nar_id: i64,
    /// Length of the NAR's file, in bytes.
    pub file_size: u64,
    /// Time of the last recorded use, in seconds since 1970.
    pub used_at: i64,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
    /// Time after its last use for which the path is kept, in seconds. `None`: it is kept forever.
    pub retention: Option<i64>,
    /// Whether the path is condemned.
    pub is_condemned: bool,
}

/// Returns [`GraphPath::retention`] from the name of a cache and the name of a path in it.
pub type Times<'a> = dyn Fn(&str, &str) -> Option<i64> + 'a;

impl Graph {
    /// Whether a path is one of an upstream, which is kept.
    pub(crate) fn is_of_upstream(&self, index: usize) -> bool {
        is_of_upstream(&self.caches[self.paths[index].cache as usize])
    }

    /// Returns the indices of a path's references.
    pub(crate) fn references(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let range = self.starts[index] as usize..self.starts[index + 1] as usize;
        self.references[range].iter().map(|index| *index as usize)
    }
}

/// Reads all paths, their references and the valid pins from one snapshot of the database.
/// `time` returns [`GraphPath::retention`] of a path from the name of its cache and its own
/// name.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn graph(database: &Database, time: &Times<'_>) -> Result<Graph, StorageError> {
    database.read_raw(|connection| {
        let now = database.now();
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
        let edges = edges(&transaction, &graph, &ids)?;
        set_references(&mut graph, edges)?;
        let mut statement = transaction
            .prepare("select path_id from pin where expires_at is null or expires_at > ?1")?;
        let mut rows = statement.query([now])?;
        while let Some(row) = rows.next()? {
            graph.pinned.push(position(&ids, &row.get(0)?)?);
        }
        Ok(graph)
    })
}

/// Returns the store path in this row, or `None` if the row does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn store_path(database: &Database, id: i64) -> Result<Option<StorePath>, StorageError> {
    database.read_raw(|connection| {
        let mut statement =
            connection.prepare_cached("select hash_part, name from path where id = ?1")?;
        let row: Option<([u8; 20], String)> = statement
            .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        row.map(|(hash_part, name)| path_of(HashPart::from_bytes(hash_part), &name))
            .transpose()
    })
}

/// Condemns paths (`true`) or revives them (`false`), in one transaction. A path is not deleted
/// before its condemnation is [confirmed](confirm).
///
/// # Errors
///
/// Any [`StorageError`].
pub fn condemn_paths(
    database: &Database,
    ids: &[i64],
    is_condemned: bool,
) -> Result<(), StorageError> {
    database.write_raw(|transaction| {
        let condemned_at = is_condemned.then_some(UNCONFIRMED);
        let mut statement = transaction.prepare_cached(
            "update path set condemned_at = ?2 where id = ?1 \
             and (condemned_at is null) = (?2 is not null)",
        )?;
        for id in ids {
            statement.execute(params![id, condemned_at])?;
        }
        Ok(())
    })
}

/// Sets the time of condemnations that have none yet to the present time, for at most
/// `count_max` paths and as many NARs. Must be called after the condemnations were committed,
/// so that each look-up after this time sees them. Returns whether all condemnations now have a
/// time.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn confirm(database: &Database, count_max: u32) -> Result<bool, StorageError> {
    database.write_raw(|transaction| {
        let now = database.now();
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
    })
}

/// Returns the paths whose condemnation has a time of `before` or earlier, newest first: a path
/// comes before its references.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn condemned_paths(database: &Database, before: i64) -> Result<Vec<i64>, StorageError> {
    database.read_raw(|connection| {
        // References are published before their referrers, so their row numbers are smaller.
        ids(
            connection,
            "select id from path where condemned_at <= ?1 order by id desc",
            &[before],
        )
    })
}

/// Deletes those of these paths that are still condemned, since `before` or longer, and that no
/// other path and no pin needs. Also deletes their realisations. Does so in one transaction, in
/// which `remove_mirror` is called with the key of each of their files in the directory.
/// Returns the deleted paths.
///
/// # Errors
///
/// Any [`StorageError`]. No path is deleted then.
pub(crate) fn delete_paths(
    database: &Database,
    ids: &[i64],
    before: i64,
    remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    database.write_raw(|transaction| {
        let mirrored = caches::mirrored_in(transaction)?.map(|cache| cache.id.0);
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
    })
}

/// Returns the loose NARs: no path uses them, and no client has sent them since `sent_before`.
/// With `before`, returns those that are condemned since then or longer. Without it, returns
/// those that are not condemned.
pub(crate) fn loose_nars(
    database: &Database,
    sent_before: i64,
    before: Option<i64>,
) -> Result<Vec<i64>, StorageError> {
    database.read_raw(|connection| match before {
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
    })
}

/// Condemns those of these NARs that are [still loose](loose_nars), in one transaction.
/// Returns their number.
pub(crate) fn condemn_nars(
    database: &Database,
    ids: &[i64],
    sent_before: i64,
) -> Result<usize, StorageError> {
    database.write_raw(|transaction| {
        let mut statement = transaction.prepare_cached(concat!(
            "update nar set state = 2, state_at = ?3 where id = ?2 and state <> 2 and ",
            is_loose!()
        ))?;
        let mut count = 0;
        for id in ids {
            count += statement.execute(params![sent_before, id, UNCONFIRMED])?;
        }
        Ok(count)
    })
}

/// Deletes those of these NARs that are still loose and condemned since `before` or longer.
/// Records the keys of their objects as garbage in the same transaction. Returns the lengths of
/// their files.
pub(crate) fn delete_nars(
    database: &Database,
    ids: &[i64],
    sent_before: i64,
    before: i64,
) -> Result<Vec<u64>, StorageError> {
    database.write_raw(|transaction| {
        let now = database.now();
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
    })
}

/// Returns the garbage keys whose objects are not removed yet.
pub(crate) fn garbage(database: &Database) -> Result<Vec<String>, StorageError> {
    database.read_raw(|connection| {
        let mut statement =
            connection.prepare_cached("select object_key from garbage where done_at is null")?;
        let rows = statement.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    })
}

/// Records that the objects with these keys were removed.
pub(crate) fn set_removed(database: &Database, keys: &[String]) -> Result<(), StorageError> {
    database.write_raw(|transaction| {
        let now = database.now();
        let mut statement =
            transaction.prepare_cached("update garbage set done_at = ?2 where object_key = ?1")?;
        for key in keys {
            statement.execute(params![key, now])?;
        }
        Ok(())
    })
}

/// Frees the garbage keys whose objects were removed at `before` or earlier.
pub(crate) fn free_keys(database: &Database, before: i64) -> Result<(), StorageError> {
    let connection = &*database.writer()?;
    connection.execute("delete from garbage where done_at <= ?1", [before])?;
    Ok(())
}

/// Returns each reference as the indices of a path and of the path to which it refers. If an upload
/// refers to a path outside of its cache, that is a path of an upstream, if it is kept. If a path
/// of an upstream refers to a path outside of its cache, that may be any path.
fn edges(
    transaction: &Connection,
    graph: &Graph,
    ids: &[i64],
) -> Result<Vec<(u32, u32)>, StorageError> {
    let mut edges = Vec::new();
    let mut statement = transaction.prepare("select referrer, reference from reference")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        edges.push((position(ids, &row.get(0)?)?, position(ids, &row.get(1)?)?));
    }
    if graph.caches.iter().any(|name| is_of_upstream(name)) {
        let by_hash_part = by_hash_part(transaction, ids)?;
        let is_kept = |index: u32| graph.is_of_upstream(index as usize);
        let mut statement =
            transaction.prepare("select referrer, base_name from outer_reference")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let hash_part = base_name(&row.get::<_, String>(1)?)?.hash_part();
            let referrer = position(ids, &row.get(0)?)?;
            let from = by_hash_part.partition_point(|(other, _)| *other < hash_part);
            let same = by_hash_part[from..].iter();
            let same = same.take_while(|(other, _)| *other == hash_part);
            let reached = same.filter(|(_, index)| is_kept(referrer) || is_kept(*index));
            edges.extend(reached.map(|(_, index)| (referrer, *index)));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(edges)
}

/// Returns the hash parts of all paths with their indices, sorted.
fn by_hash_part(
    transaction: &Connection,
    ids: &[i64],
) -> Result<Vec<(HashPart, u32)>, StorageError> {
    let mut statement = transaction.prepare("select id, hash_part from path")?;
    let mut rows = statement.query([])?;
    let mut found = Vec::with_capacity(ids.len());
    while let Some(row) = rows.next()? {
        let index = position(ids, &row.get(0)?)?;
        found.push((HashPart::from_bytes(row.get(1)?), index));
    }
    found.sort_unstable();
    Ok(found)
}

/// Sets the references of all paths. `edges`: as of [`edges`], sorted.
fn set_references(graph: &mut Graph, edges: Vec<(u32, u32)>) -> Result<(), StorageError> {
    u32::try_from(edges.len()).map_err(|_too_many| damaged("more than 4294967295 references"))?;
    let mut end = 0;
    graph.starts.push(0);
    for index in 0..graph.paths.len() {
        let of_path = edges[end..].iter();
        end += of_path
            .take_while(|(referrer, _)| *referrer as usize == index)
            .count();
        graph.starts.push(u32::try_from(end).unwrap_or(u32::MAX));
    }
    graph.references = edges.into_iter().map(|(_, reference)| reference).collect();
    Ok(())
}

/// Returns the index of a row number in a sorted list.
fn position(ids: &[i64], id: &i64) -> Result<u32, StorageError> {
    let position = ids.binary_search(id).ok();
    let position = position.and_then(|position| u32::try_from(position).ok());
    position.ok_or_else(|| damaged(&format!("row {id} is missing")))
}

/// Returns the keys of the realisations whose output is this path.
fn realisations(connection: &Connection, path: i64) -> Result<Vec<String>, StorageError> {
    let mut statement = connection.prepare_cached("select key from extra where path_id = ?1")?;
    let rows = statement.query_map([path], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Records the key of an object as garbage.
pub(super) fn discard(connection: &Connection, key: &str, now: i64) -> Result<(), StorageError> {
    connection
        .prepare_cached("insert or replace into garbage values (?1, ?2, null)")?
        .execute(params![key, now])?;
    Ok(())
}

fn ids(connection: &Connection, query: &str, parameters: &[i64]) -> Result<Vec<i64>, StorageError> {
    let mut statement = connection.prepare_cached(query)?;
    let parameters = rusqlite::params_from_iter(parameters);
    let rows = statement.query_map(parameters, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
