//! Writes rows of the database as lines of JSON for the backup, and restores them.

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use crate::error::StorageError;

/// The ID of the mirrored cache, as an SQL expression; null if there is none.
macro_rules! mirrored_id {
    () => {
        "(select cast(value as integer) from meta where meta.key = 'mirrored-cache')"
    };
}

const DUMP: [&str; 5] = [
    "select json_object('kind', 'token', 'hash', hex(hash), 'name', name, 'cache', cache, \
     'names', names, 'rights', rights, 'created_at', created_at, 'expires_at', expires_at, \
     'revoked_at', revoked_at) from token order by id",
    "select json_object('kind', 'pin', 'cache', cache.name, 'name', pin.name, \
     'generation', generation, 'path', hex(hash_part), 'created_at', pin.created_at, \
     'expires_at', expires_at, 'token', token_name, 'host', host, 'message', message, \
     'lineage', hex(lineage)) \
     from pin join path on path.id = path_id \
     join cache on cache.id = pin.cache_id order by pin.id",
    "select json_object('kind', 'removed-pin', 'cache', cache.name, 'name', removed_pin.name, \
     'generation', generation, 'removed_at', removed_at) \
     from removed_pin join cache on cache.id = cache_id order by cache_id, removed_pin.name",
    "select json_object('kind', 'use', 'cache', cache.name, 'path', hex(hash_part), \
     'at', used_at) from path join cache on cache.id = cache_id order by path.id",
    concat!(
        "select json_object('kind', 'mirrored-cache', 'name', name) from cache where id = ",
        mirrored_id!()
    ),
];

/// Each statement is run with every line, and changes nothing for lines of another kind.
const RESTORE: [&str; 4] = [
    "insert or ignore into token \
     (hash, name, cache, names, rights, created_at, expires_at, revoked_at) \
     select unhex(?1 ->> 'hash'), ?1 ->> 'name', ?1 ->> 'cache', ?1 ->> 'names', \
     ?1 ->> 'rights', ?1 ->> 'created_at', ?1 ->> 'expires_at', ?1 ->> 'revoked_at' \
     where ?1 ->> 'kind' = 'token'",
    "insert or ignore into pin (cache_id, name, generation, path_id, created_at, expires_at, \
     token_name, host, message, lineage) \
     select cache.id, ?1 ->> 'name', ?1 ->> 'generation', path.id, ?1 ->> 'created_at', \
     ?1 ->> 'expires_at', ?1 ->> 'token', ?1 ->> 'host', ?1 ->> 'message', \
     coalesce(unhex(?1 ->> 'lineage'), \
         (select lineage from pin where cache_id = cache.id and name = ?1 ->> 'name'), \
         randomblob(16)) \
     from cache join path on path.cache_id = cache.id \
     where ?1 ->> 'kind' = 'pin' and cache.name = ?1 ->> 'cache' \
     and hash_part = unhex(?1 ->> 'path')",
    "insert or ignore into removed_pin (cache_id, name, generation, removed_at) \
     select id, ?1 ->> 'name', ?1 ->> 'generation', ?1 ->> 'removed_at' from cache \
     where ?1 ->> 'kind' = 'removed-pin' and cache.name = ?1 ->> 'cache'",
    // Older versions have written the day, since 1970.
    "update path set used_at = coalesce(?1 ->> 'at', (?1 ->> 'day') * 86400) \
     where ?1 ->> 'kind' = 'use' \
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
    for query in DUMP {
        let mut statement = connection.prepare(query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            write(&row.get::<_, String>(0)?)?;
        }
    }
    Ok(())
}

/// Returns the narinfos in the lines of a backup, each with the name of its cache.
pub(super) fn narinfos(
    connection: &Connection,
    lines: &[String],
) -> Result<Vec<(String, String)>, StorageError> {
    let mut statement = connection
        .prepare("select ?1 ->> 'cache', ?1 ->> 'text' where ?1 ->> 'kind' = 'narinfo'")?;
    let mut narinfos = Vec::new();
    for line in lines {
        let narinfo = statement.query_row([line], |row| Ok((row.get(0)?, row.get(1)?)));
        narinfos.extend(narinfo.optional()?);
    }
    Ok(narinfos)
}

/// Returns whether the database lacks a token, a pin or a path of a cache that is not mirrored. The
/// lines of last uses name all paths. A pin that was removed since is known; paths whose narinfos
/// are in the directory need no backup.
pub(super) fn lacks_any(connection: &Connection, lines: &[String]) -> Result<bool, StorageError> {
    let mut statement = connection.prepare(concat!(
        "select case ?1 ->> 'kind' \
         when 'token' then not exists \
             (select 1 from token where hash = unhex(?1 ->> 'hash')) \
         when 'pin' then not exists \
             (select 1 from cache where cache.name = ?1 ->> 'cache' and ( \
                 exists (select 1 from pin \
                     where cache_id = cache.id and pin.name = ?1 ->> 'name') \
                 or exists (select 1 from removed_pin \
                     where cache_id = cache.id and removed_pin.name = ?1 ->> 'name'))) \
         when 'use' then not exists \
             (select 1 from cache where cache.name = ?1 ->> 'cache' and (cache.id is ",
        mirrored_id!(),
        " or exists (select 1 from path \
                 where cache_id = cache.id and hash_part = unhex(?1 ->> 'path')))) \
         else 0 end where json_valid(?1)"
    ))?;
    for line in lines {
        let lacks = statement.query_row([line], |row| row.get::<_, bool>(0));
        if lacks.optional()? == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the name of the mirrored cache in the lines of a backup.
pub(super) fn mirrored_cache(
    connection: &Connection,
    lines: &[String],
) -> Result<Option<String>, StorageError> {
    let mut statement =
        connection.prepare("select ?1 ->> 'name' where ?1 ->> 'kind' = 'mirrored-cache'")?;
    for line in lines {
        if let Some(name) = statement.query_row([line], |row| row.get(0)).optional()? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Returns a text that changes when tokens, pins or the mirrored cache change, or paths of caches
/// that the directory does not mirror.
pub(super) fn state(connection: &Connection) -> Result<String, StorageError> {
    let query = concat!(
        "select concat_ws(' ', ",
        mirrored_id!(),
        ", \
         (select concat_ws(' ', count(*), max(id), sum(revoked_at)) from token), \
         (select concat_ws(' ', count(*), max(id)) from pin), \
         (select concat_ws(' ', count(*), max(id)) from path \
             where cache_id is not ",
        mirrored_id!(),
        "))"
    );
    Ok(connection.query_row(query, [], |row| row.get(0))?)
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

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;

    fn database() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::migrate(&mut connection).unwrap();
        connection
            .execute_batch(
                "insert into meta values ('mirrored-cache', '1'); \
                 insert into cache values (1, 'default', '/nix/store', 0, 0, 0, 0); \
                 insert into nar values \
                     (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0); \
                 insert into path values \
                     (1, 1, x'01', 'app', 1, 0, null, null, '', 0, null, 0, null, 0);",
            )
            .unwrap();
        connection
    }

    #[test]
    fn restored_pins_have_their_origin_and_their_numbers() {
        let connection = database();
        connection
            .execute_batch(
                "insert into pin values \
                     (1, 1, 'main', 4, 1, 5, 9, 'ci', 'box', 'a message', randomblob(16)), \
                     (2, 1, 'main', 5, 1, 6, null, null, null, null, randomblob(16)), \
                     (3, 1, 'gone', 7, 1, 6, null, null, null, null, randomblob(16)); \
                 delete from pin where name = 'gone';",
            )
            .unwrap();
        let dumped = |connection: &Connection| {
            let mut lines = Vec::new();
            let mut write = |line: &str| {
                lines.push(line.to_owned());
                Ok(())
            };
            dump(connection, &mut write).unwrap();
            lines
        };
        let lines = dumped(&connection);
        assert!(lines.iter().any(|line| line.contains("\"a message\"")));
        assert!(lines.iter().any(|line| line.contains("\"removed-pin\"")));
        let mut other = database();
        let transaction = other.transaction().unwrap();
        restore(&transaction, &lines).unwrap();
        transaction.commit().unwrap();
        assert_eq!(dumped(&other), lines);
    }
}
