//! The ends of lineages.
//!
//! A generation has the lineage of the generation with the number before it, if there is one when
//! it is added. So a lineage ends when a number is left out: after the newest generation was
//! removed, and after an older copy of the database was restored.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior};

use crate::error::StorageError;
use crate::objects::identity;

/// Key in the table `meta` of the identity of the database's file.
const KEY: &str = "file";

/// Ends the lineages of all pins: their next generations get new ones.
pub(super) fn end_all(transaction: &Transaction<'_>) -> Result<(), StorageError> {
    transaction.execute(
        "insert into removed_pin \
         select cache_id, name, max(generation) + 1, unixepoch() from pin \
         where true group by cache_id, name \
         on conflict do update set generation = max(generation, excluded.generation)",
        [],
    )?;
    Ok(())
}

/// Ends all lineages if the file of the database is not the one that was opened last: it was
/// restored from a backup, or moved to another file system. Other machines may know generations
/// that it lacks.
pub(super) fn notice_restored(
    connection: &mut Connection,
    path: &Path,
) -> Result<(), StorageError> {
    let failed = |error| StorageError::file("cannot read", path.to_string_lossy(), error);
    let found = identity(path).map_err(failed)?;
    if known(connection)?.as_ref() == Some(&found) {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if known(&transaction)?.is_some_and(|known| known != found) {
        end_all(&transaction)?;
    }
    let set = "insert into meta values (?1, ?2) \
               on conflict do update set value = excluded.value";
    transaction.execute(set, [KEY, &found])?;
    Ok(transaction.commit()?)
}

fn known(connection: &Connection) -> Result<Option<String>, StorageError> {
    let query = "select value from meta where key = ?1";
    let value = connection.query_row(query, [KEY], |row| row.get(0));
    Ok(value.optional()?)
}
