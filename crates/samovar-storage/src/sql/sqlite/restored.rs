//! Notices that the file of the database was restored from a copy.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use crate::error::StorageError;
use crate::objects::identity;
use crate::sql::{connection, lineage};

/// Key in the table `meta` of the identity of the database's file.
const KEY: &str = "file";

/// Ends all lineages if the file of the database is not the one that was opened last: it was
/// restored from a backup, or moved to another file system. Other machines may know generations
/// that it lacks.
pub(super) fn notice(
    connection: &mut Connection,
    path: &Path,
    now: i64,
) -> Result<(), StorageError> {
    let failed = |error| StorageError::file("cannot read", path.to_string_lossy(), error);
    let found = identity(path).map_err(failed)?;
    if known(connection)?.as_ref() == Some(&found) {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if known(&transaction)?.is_some_and(|known| known != found) {
        lineage::end_all(&connection::Connection::Sqlite(&transaction), now)?;
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
