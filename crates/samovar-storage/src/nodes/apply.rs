//! Loads the catalog of a node, and applies changes to it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use samovar_lease::{Generation, Read, RowId, Seq, Snapshot};
use samovar_nix::HashPart;

use crate::error::StorageError;
use crate::sql::{CacheId, Change, Connection, Session, insert_generation, params};
use crate::storage::Storage;

/// Maximum number of changes that are applied one by one. A node that lacks more loads everything.
const CHANGE_COUNT_MAX: usize = 100_000;

/// The file of the table of paths. It is another one after a dump was restored over the tables,
/// which may have brought back the numbers of commits and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableFile(i64);

/// Replaces the catalog with the content of one snapshot.
pub(super) fn load(
    storage: &Storage,
    session: &Session,
) -> Result<(Snapshot, TableFile), StorageError> {
    insert_generation(session)?;
    let connection = Connection::Postgres(session);
    let (snapshot, file, paths) = connection.snapshot(|connection| {
        let query = "select generation.id, clock.seq, pg_relation_filenode('path')::bigint, \
                     exists (select from pg_trigger \
                             where tgrelid = 'path'::regclass and tgname = 'path_added') \
                     from generation cross join clock";
        let found = connection.optional(query, &[], |row| {
            let snapshot = Snapshot {
                generation: Generation(row.get(0)?),
                seq: Seq(row.get(1)?),
            };
            Ok((snapshot, TableFile(row.get(2)?), row.get::<bool>(3)?))
        })?;
        let Some((snapshot, file, true)) = found else {
            // Programs that restore a dump create triggers after all rows.
            let reason = "a dump is being restored: the tables have no triggers yet";
            return Err(StorageError::Unavailable(reason.to_owned()));
        };
        let mut paths = HashSet::new();
        connection.each("select cache_id, hash_part from path", &[], |row| {
            paths.insert((CacheId(row.get(0)?), HashPart::from_bytes(row.get(1)?)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((snapshot, file, paths))
    })?;
    storage.catalog.rows.forget_all();
    storage.seen_tokens.forget_all();
    storage.catalog.index_mut().paths = paths;
    storage.pins_changed();
    Ok((snapshot, file))
}

/// Reads the changes after a number from one snapshot, and applies them. `file`: the file from
/// which the catalog was loaded.
pub(super) fn read(
    storage: &Storage,
    connection: &Connection<'_>,
    row: RowId,
    after: Seq,
    file: TableFile,
) -> Result<Read, StorageError> {
    let query = format!(
        "select clock.seq, clock.pruned, change.seq, change.op, change.cache_id, \
             change.hash_part, pg_relation_filenode('path')::bigint \
         from node cross join clock left join change on change.seq > ?2 \
         where node.id = ?1 order by change.seq, change.number limit {}",
        CHANGE_COUNT_MAX + 1
    );
    let mut last = None;
    let mut is_known = true;
    let mut changes = Vec::new();
    connection.rows(&query, params![row.0, after.0], |row| {
        let (seq, pruned): (i64, i64) = (row.get(0)?, row.get(1)?);
        let is_same = TableFile(row.get(6)?) == file && seq >= after.0;
        last = Some(Seq(seq)).filter(|_| is_same && after.0 >= pruned);
        let Some(_seq) = row.get::<Option<i64>>(2)? else {
            return Ok(());
        };
        let cache = row.get::<Option<i64>>(4)?.map(CacheId);
        let hash_part = row.get::<Option<[u8; 20]>>(5)?.map(HashPart::from_bytes);
        match Change::of_columns(row.get(3)?, cache, hash_part) {
            Some(change) => changes.push(change),
            // A newer version has written it.
            None => is_known = false,
        }
        Ok(())
    })?;
    match last {
        Some(last) if is_known && changes.len() <= CHANGE_COUNT_MAX => {
            apply(storage, &changes);
            Ok(Read::Applied(last))
        }
        _ => Ok(Read::Outdated),
    }
}

fn apply(storage: &Storage, changes: &[Change]) {
    if changes.is_empty() {
        return;
    }
    let catalog = &storage.catalog;
    let mut have_pins_changed = false;
    for change in changes {
        match change {
            Change::PathAdded(..) => {}
            Change::PathChanged(cache, hash_part) | Change::PathRemoved(cache, hash_part) => {
                catalog.rows.forget(&(*cache, *hash_part));
            }
            Change::CacheChanged(_) => catalog.rows.forget_all(),
            Change::PinsChanged(_) => have_pins_changed = true,
            Change::TokensChanged => storage.seen_tokens.forget_all(),
            Change::MirroredChanged => storage.check_mirror(),
        }
    }
    // The same thread makes all changes, so a reader sees all of them or none.
    let mut index = catalog.index_mut();
    for change in changes {
        match change {
            Change::PathAdded(cache, hash_part) => {
                index.paths.insert((*cache, *hash_part));
            }
            Change::PathRemoved(cache, hash_part) => {
                index.paths.remove(&(*cache, *hash_part));
            }
            _ => {}
        }
    }
    drop(index);
    let removed = changes.iter().filter_map(|change| match change {
        Change::PathRemoved(cache, hash_part) => Some((*cache, *hash_part)),
        _ => None,
    });
    storage.remember_collected(removed);
    if have_pins_changed {
        storage.pins_changed();
    }
}
