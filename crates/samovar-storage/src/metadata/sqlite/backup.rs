//! Writes rows of the database as lines of JSON for the backup, and restores them.

use rusqlite::{Connection, Transaction};

use crate::error::StorageError;

const DUMP: [&str; 3] = [
    "select json_object('kind', 'token', 'hash', hex(hash), 'name', name, 'cache', cache, \
     'names', names, 'rights', rights, 'created_at', created_at, 'expires_at', expires_at, \
     'revoked_at', revoked_at) from token order by id",
    "select json_object('kind', 'pin', 'cache', cache.name, 'name', pin.name, \
     'generation', generation, 'path', hex(hash_part), 'created_at', pin.created_at, \
     'expires_at', expires_at) from pin join path on path.id = path_id \
     join cache on cache.id = pin.cache_id order by pin.id",
    "select json_object('kind', 'use', 'cache', cache.name, 'path', hex(hash_part), \
     'day', used_on) from path join cache on cache.id = cache_id order by path.id",
];

/// Each statement is run with every line, and changes nothing for lines of another kind.
const RESTORE: [&str; 3] = [
    "insert or ignore into token \
     (hash, name, cache, names, rights, created_at, expires_at, revoked_at) \
     select unhex(?1 ->> 'hash'), ?1 ->> 'name', ?1 ->> 'cache', ?1 ->> 'names', \
     ?1 ->> 'rights', ?1 ->> 'created_at', ?1 ->> 'expires_at', ?1 ->> 'revoked_at' \
     where ?1 ->> 'kind' = 'token'",
    "insert or ignore into pin (cache_id, name, generation, path_id, created_at, expires_at) \
     select cache.id, ?1 ->> 'name', ?1 ->> 'generation', path.id, ?1 ->> 'created_at', \
     ?1 ->> 'expires_at' from cache join path on path.cache_id = cache.id \
     where ?1 ->> 'kind' = 'pin' and cache.name = ?1 ->> 'cache' \
     and hash_part = unhex(?1 ->> 'path')",
    "update path set used_on = ?1 ->> 'day' where ?1 ->> 'kind' = 'use' \
     and cache_id = (select id from cache where name = ?1 ->> 'cache') \
     and hash_part = unhex(?1 ->> 'path')",
];

pub(super) fn today(connection: &Connection, now: i64) -> Result<String, StorageError> {
    Ok(connection.query_row("select date(?1, 'unixepoch')", [now], |row| row.get(0))?)
}

pub(super) fn dump(
    connection: &Connection,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    // All queries read the same snapshot.
    let transaction = connection.unchecked_transaction()?;
    for query in DUMP {
        let mut statement = transaction.prepare(query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            write(&row.get::<_, String>(0)?)?;
        }
    }
    Ok(())
}

pub(super) fn restore(transaction: &Transaction<'_>, lines: &[String]) -> Result<(), StorageError> {
    for statement in RESTORE {
        let mut statement = transaction.prepare(statement)?;
        for line in lines {
            statement.execute([line])?;
        }
    }
    Ok(())
}
