//! Writes rows of the database as lines of JSON for the backup, and restores them.

use rusqlite::{Connection, OptionalExtension as _};
use samovar_nix::{HashPart, StoreDir};

use super::rows::damaged;
use super::{CacheId, Database, paths};
use crate::error::StorageError;
use crate::sql::lineage;

/// The ID of the mirrored cache, as an SQL expression; null if there is none.
macro_rules! mirrored_id {
    () => {
        "(select cast(value as integer) from meta where meta.key = 'mirrored-cache')"
    };
}

/// Condition for caches of uploaded paths: paths of upstreams can be requested again.
macro_rules! is_of_uploads {
    () => {
        "cache.name not like 'upstream:%'"
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
    concat!(
        "select json_object('kind', 'use', 'cache', cache.name, 'path', hex(hash_part), \
         'at', used_at) from path join cache on cache.id = cache_id where ",
        is_of_uploads!(),
        " order by path.id"
    ),
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

/// Returns today's date in the form `2026-11-23`.
pub(crate) fn today(database: &Database) -> Result<String, StorageError> {
    database.read_raw(|connection| {
        let now = database.now();
        Ok(connection.query_row("select date(?1, 'unixepoch')", [now], |row| row.get(0))?)
    })
}

/// Calls `write` with a line of JSON for each token, each pin, the last use of each uploaded path,
/// the mirrored cache, and the narinfo of each uploaded path of another cache. Returns the fault of
/// the first path that is left out because its row is damaged.
///
/// # Errors
///
/// Any other [`StorageError`], and those of `write`.
pub(crate) fn dump(
    database: &Database,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Option<StorageError>, StorageError> {
    database.read_raw(|connection| {
        // All queries read the same snapshot.
        let transaction = connection.unchecked_transaction()?;
        dump_rows(&transaction, write)?;
        dump_paths(&transaction, write)
    })
}

/// Returns the narinfos in lines that [`dump`] has written, each with the name of
/// its cache. A path comes after its references.
pub(crate) fn narinfos(
    database: &Database,
    lines: &[String],
) -> Result<Vec<(String, String)>, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection
            .prepare("select ?1 ->> 'cache', ?1 ->> 'text' where ?1 ->> 'kind' = 'narinfo'")?;
        let mut narinfos = Vec::new();
        for line in lines {
            let narinfo = statement.query_row([line], |row| Ok((row.get(0)?, row.get(1)?)));
            narinfos.extend(narinfo.optional()?);
        }
        Ok(narinfos)
    })
}

/// Returns whether a token, a pin or a path of a cache that is not mirrored is in lines that
/// [`dump`] has written, but not in the database. Ignores other lines.
pub(crate) fn lacks_any(database: &Database, lines: &[String]) -> Result<bool, StorageError> {
    database.read_raw(|connection| {
        // The lines of last uses name all paths. A pin that was removed since is known; paths whose
        // narinfos are in the directory need no backup.
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
    })
}

/// Returns the name of the mirrored cache in lines that [`dump`] has written.
pub(crate) fn mirrored_cache(
    database: &Database,
    lines: &[String],
) -> Result<Option<String>, StorageError> {
    database.read_raw(|connection| {
        let mut statement =
            connection.prepare("select ?1 ->> 'name' where ?1 ->> 'kind' = 'mirrored-cache'")?;
        for line in lines {
            if let Some(name) = statement.query_row([line], |row| row.get(0)).optional()? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    })
}

/// Returns a text that changes when what [`dump`] writes changes, except the last
/// uses.
pub(crate) fn state(database: &Database) -> Result<String, StorageError> {
    database.read_raw(|connection| {
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
    })
}

/// Restores lines that [`dump`] has written, in one transaction. Ignores narinfos,
/// and pins and uses of paths that do not exist.
pub(crate) fn restore(database: &Database, lines: &[String]) -> Result<(), StorageError> {
    database.write(|transaction| {
        restore_rows(transaction.raw(), lines)?;
        lineage::end_all(transaction, database.now())
    })
}

fn dump_rows(
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

fn restore_rows(transaction: &Connection, lines: &[String]) -> Result<(), StorageError> {
    for statement in RESTORE {
        let mut statement = transaction.prepare(statement)?;
        for line in lines {
            statement.execute([line])?;
        }
    }
    Ok(())
}

/// Writes the narinfos of all caches that the directory does not mirror, references first. Returns
/// the fault of the first path that is left out because its row is damaged.
fn dump_paths(
    connection: &Connection,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Option<StorageError>, StorageError> {
    let mut json =
        connection.prepare("select json_object('kind', 'narinfo', 'cache', ?1, 'text', ?2)")?;
    let mut paths = connection.prepare(concat!(
        "select cache_id, cache.name, store_dir, hash_part \
         from path join cache on cache.id = cache_id where cache_id is not ",
        mirrored_id!(),
        " and ",
        is_of_uploads!(),
        " order by path.id"
    ))?;
    let mut fault = None;
    let mut rows = paths.query([])?;
    while let Some(row) = rows.next()? {
        let (cache, hash_part) = (CacheId(row.get(0)?), HashPart::from_bytes(row.get(3)?));
        let dir: String = row.get(2)?;
        let text = match narinfo(connection, cache, &dir, hash_part) {
            Ok(text) => text,
            Err(error @ StorageError::Damaged(_)) => {
                fault = fault.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(text) = text {
            let name: String = row.get(1)?;
            let line: String = json.query_row([&name, &text], |row| row.get(0))?;
            write(&line)?;
        }
    }
    Ok(fault)
}

/// Returns the narinfo of a path in a cache with this store directory. `None`: the path is lost.
fn narinfo(
    connection: &Connection,
    cache: CacheId,
    dir: &str,
    hash_part: HashPart,
) -> Result<Option<String>, StorageError> {
    let dir = StoreDir::new(dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?;
    let Some((path, _)) = paths::stored_path(connection, cache, hash_part)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let written = path.narinfo().write(&dir, &mut text);
    written.map_err(|error| damaged(&format!("{}: {error}", path.path)))?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn database() -> (TempDir, Database) {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(&dir.path().join("db.sqlite")).unwrap();
        let statements = "insert into meta values ('mirrored-cache', '1'); \
             insert into cache values (1, 'default', '/nix/store', 0, 0, 0, 0); \
             insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0); \
             insert into path values \
                 (1, 1, x'01', 'app', 1, 0, null, null, '', 0, null, 0, null, 0);";
        database
            .writer()
            .unwrap()
            .execute_batch(statements)
            .unwrap();
        (dir, database)
    }

    #[test]
    fn restored_pins_have_their_origin_and_their_numbers() {
        let (_dir, connection) = database();
        connection
            .writer()
            .unwrap()
            .execute_batch(
                "insert into pin values \
                     (1, 1, 'main', 4, 1, 5, 9, 'ci', 'box', 'a message', randomblob(16)), \
                     (2, 1, 'main', 5, 1, 6, null, null, null, null, randomblob(16)), \
                     (3, 1, 'gone', 7, 1, 6, null, null, null, null, randomblob(16)); \
                 delete from pin where name = 'gone';",
            )
            .unwrap();
        let dumped = |connection: &Database| {
            let mut lines = Vec::new();
            let mut write = |line: &str| {
                lines.push(line.to_owned());
                Ok(())
            };
            connection
                .read_raw(|connection| dump_rows(connection, &mut write))
                .unwrap();
            lines
        };
        let lines = dumped(&connection);
        assert!(lines.iter().any(|line| line.contains("\"a message\"")));
        assert!(lines.iter().any(|line| line.contains("\"removed-pin\"")));
        let (_other_dir, other) = database();
        other
            .write_raw(|transaction| restore_rows(transaction, &lines))
            .unwrap();
        assert_eq!(dumped(&other), lines);
    }
}
