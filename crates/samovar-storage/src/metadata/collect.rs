//! Records uses, and runs the statements of the collector.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use samovar_nix::{HashPart, StorePath};

use super::rows::{base_name, damaged, path_of, unsigned, values};
use super::{CacheId, Database, caches, packs};
use crate::error::StorageError;
use crate::layout::{is_of_upstream, narinfo_key};
use crate::objects::Removal;
use crate::sql::{Change, Connection, Dialect, Row, Transaction, Value, params};

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
    let now = database.now();
    database.read(|connection| {
        connection.snapshot(|connection| {
            let mut graph = Graph::default();
            read_paths(connection, time, &mut graph)?;
            let ids: Vec<i64> = graph.paths.iter().map(|path| path.id).collect();
            let edges = edges(connection, &graph, &ids)?;
            set_references(&mut graph, edges)?;
            let pins = "select path_id from pin where expires_at is null or expires_at > ?1";
            graph.pinned =
                connection.rows(pins, params![now], |row| position(&ids, &row.get(0)?))?;
            Ok(graph)
        })
    })
}

/// Reads the caches and their paths.
fn read_paths(
    connection: &Connection<'_>,
    time: &Times<'_>,
    graph: &mut Graph,
) -> Result<(), StorageError> {
    let mut cache_ids: Vec<i64> = Vec::new();
    each(
        connection,
        "select id, name from cache order by id",
        |row| {
            cache_ids.push(row.get(0)?);
            graph.caches.push(row.get(1)?);
            Ok(())
        },
    )?;
    let paths = "select path.id, cache_id, nar_id, file_size, used_at, registered_at, \
                 condemned_at is not null, path.name from path join nar on nar.id = nar_id \
                 order by path.id";
    each(connection, paths, |row| {
        let cache = position(&cache_ids, &row.get(1)?)?;
        graph.paths.push(GraphPath {
            id: row.get(0)?,
            cache,
            retention: time(&graph.caches[cache as usize], row.get(7)?),
            nar_id: row.get(2)?,
            file_size: unsigned(row.get(3)?)?,
            used_at: row.get(4)?,
            registered_at: row.get(5)?,
            is_condemned: row.get(6)?,
        });
        Ok(())
    })
}

/// Returns the store path in this row, or `None` if the row does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn store_path(database: &Database, id: i64) -> Result<Option<StorePath>, StorageError> {
    database.read(|connection| {
        let query = "select hash_part, name from path where id = ?1";
        connection.optional(query, params![id], |row| {
            path_of(HashPart::from_bytes(row.get(0)?), row.get(1)?)
        })
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
    database.write(|transaction| {
        let condemned_at = is_condemned.then_some(UNCONFIRMED);
        let update = "update path set condemned_at = ?1 \
             where (condemned_at is null) = (cast(?1 as bigint) is not null) and id";
        let (columns, params) = ("cache_id, hash_part", params![condemned_at]);
        let changed = transaction.returning_of(update, columns, params, &values(ids), key_of)?;
        for (cache, hash_part) in changed {
            transaction.note(Change::PathChanged(cache, hash_part));
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
    database.write(|transaction| {
        let now = database.now();
        let queries = [
            "update path set condemned_at = ?2 where id in \
                 (select id from path where condemned_at = ?1 limit ?3)",
            "update nar set state_at = ?2 where id in \
                 (select id from nar where state <> 1 and state_at = ?1 limit ?3)",
        ];
        let mut is_complete = true;
        for query in queries {
            let params = params![UNCONFIRMED, now, count_max];
            is_complete &= transaction.execute(query, params)? < count_max as usize;
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
    database.read(|connection| {
        // References are published before their referrers, so their row numbers are smaller.
        ids(
            connection,
            "select id from path where condemned_at <= ?1 order by id desc",
            params![before],
        )
    })
}

/// Deletes those of these paths that are still condemned, since `before` or longer, and that no
/// other path and no pin needs. A path must come before its references, which it needs otherwise.
/// Also deletes their realisations. Does so in one transaction, in
/// which `mirror` receives the key of each of their files beside the objects.
/// Returns the deleted paths.
///
/// # Errors
///
/// Any [`StorageError`]. No path is deleted then.
pub(crate) fn delete_paths(
    database: &Database,
    ids: &[i64],
    before: i64,
    mirror: &mut dyn Removal,
) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    database.write(|transaction| {
        mirror.begin();
        let mirrored = caches::mirrored_in(transaction)?.map(|cache| cache.id);
        let mut realisations = match mirrored {
            Some(_) => realisations(transaction, ids)?,
            None => HashMap::new(),
        };
        let ids = match transaction.dialect() {
            Dialect::Sqlite => ids.to_vec(),
            Dialect::Postgres => released(transaction, ids, before)?,
        };
        let delete = "delete from path where condemned_at <= ?1 \
             and not exists (select 1 from reference where reference = path.id) \
             and not exists (select 1 from pin where path_id = path.id) and id";
        let (columns, params) = ("id, cache_id, hash_part", params![before]);
        let deleted = transaction.returning_of(delete, columns, params, &values(&ids), |row| {
            Ok((row.get(0)?, row.get(1)?, HashPart::from_bytes(row.get(2)?)))
        })?;
        for (id, cache, hash_part) in &deleted {
            transaction.note(Change::PathRemoved(*cache, *hash_part));
            if mirrored == Some(*cache) {
                for key in realisations.remove(id).unwrap_or_default() {
                    mirror.remove(&key)?;
                }
                mirror.remove(&narinfo_key(*hash_part))?;
            }
        }
        let keys = deleted.into_iter();
        Ok(keys
            .map(|(_, cache, hash_part)| (cache, hash_part))
            .collect())
    })
}

/// Returns those of these paths that can be deleted if each path is deleted before its references,
/// and deletes their references: a statement that deletes all of them at once would find the
/// references of each as if it were not deleted.
fn released(
    transaction: &Transaction<'_>,
    ids: &[i64],
    before: i64,
) -> Result<Vec<i64>, StorageError> {
    let mut condemned: HashSet<i64> = HashSet::new();
    let query = "select id from path where condemned_at <= ?1 \
                 and not exists (select 1 from pin where path_id = path.id) and id";
    transaction.each_of(query, params![before], &values(ids), |row| {
        condemned.insert(row.get(0)?);
        Ok(())
    })?;
    let mut referrers: HashMap<i64, Vec<i64>> = HashMap::new();
    let query = "select reference, referrer from reference where reference";
    transaction.each_of(query, &[], &values(ids), |row| {
        referrers.entry(row.get(0)?).or_default().push(row.get(1)?);
        Ok(())
    })?;
    let (mut order, mut released) = (Vec::new(), HashSet::new());
    for id in ids {
        let mut referrers = referrers.get(id).into_iter().flatten();
        if condemned.contains(id) && referrers.all(|referrer| released.contains(referrer)) {
            order.push(*id);
            released.insert(*id);
        }
    }
    let delete = "delete from reference where referrer";
    transaction.execute_of(delete, &[], &values(&order))?;
    Ok(order)
}

/// Returns the loose NARs: no path uses them, and no client has sent them since `sent_before`.
/// With `before`, returns those that are condemned since then or longer. Without it, returns
/// those that are not condemned.
pub(crate) fn loose_nars(
    database: &Database,
    sent_before: i64,
    before: Option<i64>,
) -> Result<Vec<i64>, StorageError> {
    database.read(|connection| match before {
        Some(before) => ids(
            connection,
            concat!(
                "select id from nar where state = 2 and state_at <= ?2 and ",
                is_loose!()
            ),
            params![sent_before, before],
        ),
        None => ids(
            connection,
            concat!("select id from nar where state <> 2 and ", is_loose!()),
            params![sent_before],
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
    database.write(|transaction| {
        let condemn = concat!(
            "update nar set state = 2, state_at = ?2 where state <> 2 and ",
            is_loose!(),
            " and id"
        );
        transaction.execute_of(condemn, params![sent_before, UNCONFIRMED], &values(ids))
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
    database.write(|transaction| {
        let now = database.now();
        let delete = concat!(
            "delete from nar where state = 2 and state_at <= ?2 and ",
            is_loose!(),
            " and id"
        );
        let places = packs::places_in(transaction, ids)?;
        let (columns, params) = ("id, object_key, file_size", params![sent_before, before]);
        let deleted: Vec<(i64, String, u64)> =
            transaction.returning_of(delete, columns, params, &values(ids), |row| {
                Ok((row.get(0)?, row.get(1)?, unsigned(row.get(2)?)?))
            })?;
        let keys = deleted.iter().map(|(_, key, _)| &**key);
        discard(transaction, keys.collect(), now)?;
        let places = deleted.iter().filter_map(|(id, _, _)| places.get(id));
        let packs = places.map(|place| place.key.to_string());
        packs::release(transaction, packs.collect(), now)?;
        Ok(deleted.into_iter().map(|(_, _, size)| size).collect())
    })
}

/// Returns the garbage keys whose objects are not removed yet.
pub(crate) fn garbage(database: &Database) -> Result<Vec<String>, StorageError> {
    database.read(|connection| {
        let query = "select object_key from garbage where done_at is null";
        connection.rows(query, &[], |row| row.get(0))
    })
}

/// Records that the objects with these keys were removed.
pub(crate) fn set_removed(database: &Database, keys: &[String]) -> Result<(), StorageError> {
    database.write(|transaction| {
        let now = database.now();
        let update = "update garbage set done_at = ?1 where object_key";
        let keys: Vec<Value<'_>> = keys.iter().map(Value::from).collect();
        transaction.execute_of(update, params![now], &keys)?;
        Ok(())
    })
}

/// Frees the garbage keys whose objects were removed at `before` or earlier.
pub(crate) fn free_keys(database: &Database, before: i64) -> Result<(), StorageError> {
    let delete = "delete from garbage where done_at <= ?1";
    database.write(|transaction| transaction.execute(delete, params![before]))?;
    Ok(())
}

/// Returns each reference as the indices of a path and of the path to which it refers. If an upload
/// refers to a path outside of its cache, that is a path of an upstream, if it is kept. If a path
/// of an upstream refers to a path outside of its cache, that may be any path.
fn edges(
    connection: &Connection<'_>,
    graph: &Graph,
    ids: &[i64],
) -> Result<Vec<(u32, u32)>, StorageError> {
    let mut edges = Vec::new();
    each(
        connection,
        "select referrer, reference from reference",
        |row| {
            edges.push((position(ids, &row.get(0)?)?, position(ids, &row.get(1)?)?));
            Ok(())
        },
    )?;
    if graph.caches.iter().any(|name| is_of_upstream(name)) {
        let by_hash_part = by_hash_part(connection, ids)?;
        let is_kept = |index: u32| graph.is_of_upstream(index as usize);
        let outer = "select referrer, base_name from outer_reference";
        each(connection, outer, |row| {
            let hash_part = base_name(row.get(1)?)?.hash_part();
            let referrer = position(ids, &row.get(0)?)?;
            let from = by_hash_part.partition_point(|(other, _)| *other < hash_part);
            let same = by_hash_part[from..].iter();
            let same = same.take_while(|(other, _)| *other == hash_part);
            let reached = same.filter(|(_, index)| is_kept(referrer) || is_kept(*index));
            edges.extend(reached.map(|(_, index)| (referrer, *index)));
            Ok(())
        })?;
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(edges)
}

/// Returns the hash parts of all paths with their indices, sorted.
fn by_hash_part(
    connection: &Connection<'_>,
    ids: &[i64],
) -> Result<Vec<(HashPart, u32)>, StorageError> {
    let mut found = Vec::with_capacity(ids.len());
    each(connection, "select id, hash_part from path", |row| {
        let index = position(ids, &row.get(0)?)?;
        found.push((HashPart::from_bytes(row.get(1)?), index));
        Ok(())
    })?;
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

/// Returns the keys of the realisations whose outputs are these paths, by path.
fn realisations(
    connection: &Connection<'_>,
    paths: &[i64],
) -> Result<HashMap<i64, Vec<String>>, StorageError> {
    let mut keys: HashMap<i64, Vec<String>> = HashMap::new();
    let query = "select path_id, key from extra where path_id";
    connection.each_of(query, &[], &values(paths), |row| {
        keys.entry(row.get(0)?).or_default().push(row.get(1)?);
        Ok(())
    })?;
    Ok(keys)
}

/// Records the keys of objects as garbage.
pub(super) fn discard(
    connection: &Connection<'_>,
    keys: HashSet<&str>,
    now: i64,
) -> Result<(), StorageError> {
    let on_conflict = "on conflict (object_key) do update set since = excluded.since, \
                       done_at = null";
    match connection.dialect() {
        Dialect::Sqlite => {
            let insert =
                format!("insert into garbage (object_key, since) values (?1, ?2) {on_conflict}");
            for key in keys {
                connection.execute(&insert, params![key, now])?;
            }
        }
        Dialect::Postgres if keys.is_empty() => {}
        Dialect::Postgres => {
            let insert = format!(
                "insert into garbage (object_key, since) \
                 select key, ?2 from unnest(?1::text[]) as its (key) {on_conflict}"
            );
            let keys: Vec<Value<'_>> = keys.into_iter().map(Value::from).collect();
            connection.execute(&insert, &[Value::List(&keys), now.into()])?;
        }
    }
    Ok(())
}

fn ids(
    connection: &Connection<'_>,
    query: &str,
    params: &[Value<'_>],
) -> Result<Vec<i64>, StorageError> {
    connection.rows(query, params, |row| row.get(0))
}

/// Reads a cache and a hash part.
fn key_of(row: &Row<'_>) -> Result<(CacheId, HashPart), StorageError> {
    Ok((row.get(0)?, HashPart::from_bytes(row.get(1)?)))
}

/// Calls a function with each row of a large result.
fn each(
    connection: &Connection<'_>,
    query: &str,
    mut visit: impl FnMut(&Row<'_>) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    connection.each(query, &[], |row| {
        visit(row)?;
        Ok(ControlFlow::Continue(()))
    })
}
