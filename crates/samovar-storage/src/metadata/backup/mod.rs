//! Writes rows of the database as lines of JSON for the backup, and restores them.

mod line;

use std::ops::ControlFlow;

use samovar_nix::{HashPart, StoreDir};

use self::line::{Line, date, hex, unhex};
use super::caches::mirrored_id;
use super::rows::damaged;
use super::{CacheId, DAY, Database, paths};
use crate::error::StorageError;
use crate::sql::{Change, Connection, Row, Transaction, lineage, params, random};

/// Condition for caches of uploaded paths: paths of upstreams can be requested again.
macro_rules! is_of_uploads {
    () => {
        "cache.name not like 'upstream:%'"
    };
}

/// Returns today's date in the form `2026-11-23`.
pub(crate) fn today(database: &Database) -> String {
    date(database.now())
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
    database.read(|connection| {
        connection.snapshot(|connection| {
            dump_rows(connection, write)?;
            dump_paths(connection, write)
        })
    })
}

/// Returns the narinfos in lines that [`dump`] has written, each with the name of
/// its cache. A path comes after its references.
///
/// # Errors
///
/// [`StorageError::Database`] if one of the lines is none of a backup.
pub(crate) fn narinfos(lines: &[String]) -> Result<Vec<(String, String)>, StorageError> {
    let mut narinfos = Vec::new();
    for line in lines {
        if let Line::Narinfo { cache, text } = Line::parse(line)? {
            narinfos.push((cache, text));
        }
    }
    Ok(narinfos)
}

/// Returns whether a token, a pin or a path of a cache that is not mirrored is in lines that
/// [`dump`] has written, but not in the database. Ignores other lines.
pub(crate) fn lacks_any(database: &Database, lines: &[String]) -> Result<bool, StorageError> {
    database.read(|connection| {
        for line in lines {
            if let Ok(line) = Line::parse(line)
                && lacks(connection, &line)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Returns the name of the mirrored cache in lines that [`dump`] has written.
pub(crate) fn mirrored_cache(lines: &[String]) -> Option<String> {
    let lines = lines.iter().filter_map(|line| Line::parse(line).ok());
    let mut names = lines.filter_map(|line| match line {
        Line::MirroredCache { name } => Some(name),
        _ => None,
    });
    names.next()
}

/// Returns a text that changes when what [`dump`] writes changes, except the last
/// uses.
pub(crate) fn state(database: &Database) -> Result<String, StorageError> {
    let query = concat!(
        "select coalesce(",
        mirrored_id!(),
        ", 0), (select count(*) from token), (select coalesce(max(id), 0) from token), \
         (select cast(coalesce(sum(revoked_at), 0) as bigint) from token), \
         (select count(*) from pin), (select coalesce(max(id), 0) from pin), \
         (select count(*) from path where cache_id is distinct from ",
        mirrored_id!(),
        "), (select coalesce(max(id), 0) from path where cache_id is distinct from ",
        mirrored_id!(),
        ")"
    );
    let numbers: Result<Vec<i64>, _> = database.read(|connection| {
        connection.row(query, &[], |row| {
            (0..8).map(|index| row.get(index)).collect()
        })
    });
    Ok(format!("{:?}", numbers?))
}

/// Restores lines that [`dump`] has written, in one transaction. Ignores narinfos,
/// and pins and uses of paths that do not exist.
pub(crate) fn restore(database: &Database, lines: &[String]) -> Result<(), StorageError> {
    let lines = lines.iter().map(|line| Line::parse(line));
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    database.write(|transaction| {
        lines
            .iter()
            .try_for_each(|line| restore_line(transaction, line))?;
        lineage::end_all(transaction, database.now())
    })
}

/// Writes the lines of all kinds but narinfos.
fn dump_rows(
    connection: &Connection<'_>,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    type Read = fn(&Row<'_>) -> Result<Line, StorageError>;
    let uses = concat!(
        "select cache.name, hash_part, used_at from path join cache on cache.id = cache_id where ",
        is_of_uploads!(),
        " order by path.id"
    );
    let mirrored = concat!("select name from cache where id = ", mirrored_id!());
    let queries: [(&str, Read); 5] = [
        (
            "select hash, name, cache, names, rights, created_at, expires_at, revoked_at \
             from token order by id",
            token_of,
        ),
        (
            "select cache.name, pin.name, generation, hash_part, pin.created_at, expires_at, \
             token_name, host, message, lineage from pin join path on path.id = path_id \
             join cache on cache.id = pin.cache_id order by pin.id",
            pin_of,
        ),
        (
            "select cache.name, removed_pin.name, generation, removed_at from removed_pin \
             join cache on cache.id = cache_id order by cache_id, removed_pin.name",
            removed_pin_of,
        ),
        (uses, use_of),
        (mirrored, |row| {
            Ok(Line::MirroredCache { name: row.get(0)? })
        }),
    ];
    for (query, line) in queries {
        connection.each(query, &[], |row| {
            write(&line(row)?.text()?)?;
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(())
}

fn token_of(row: &Row<'_>) -> Result<Line, StorageError> {
    Ok(Line::Token {
        hash: hex(row.get(0)?),
        name: row.get(1)?,
        cache: row.get(2)?,
        names: row.get(3)?,
        rights: row.get(4)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
        revoked_at: row.get(7)?,
    })
}

fn pin_of(row: &Row<'_>) -> Result<Line, StorageError> {
    Ok(Line::Pin {
        cache: row.get(0)?,
        name: row.get(1)?,
        generation: row.get(2)?,
        path: hex(row.get(3)?),
        created_at: row.get(4)?,
        expires_at: row.get(5)?,
        token: row.get(6)?,
        host: row.get(7)?,
        message: row.get(8)?,
        lineage: Some(hex(row.get(9)?)),
    })
}

fn removed_pin_of(row: &Row<'_>) -> Result<Line, StorageError> {
    Ok(Line::RemovedPin {
        cache: row.get(0)?,
        name: row.get(1)?,
        generation: row.get(2)?,
        removed_at: row.get(3)?,
    })
}

fn use_of(row: &Row<'_>) -> Result<Line, StorageError> {
    Ok(Line::Use {
        cache: row.get(0)?,
        path: hex(row.get(1)?),
        at: row.get(2)?,
        day: None,
    })
}

/// Returns whether the database lacks what a line names.
fn lacks(connection: &Connection<'_>, line: &Line) -> Result<bool, StorageError> {
    let is_known = match line {
        Line::Token { hash, .. } => {
            let query = "select exists (select 1 from token where hash = ?1)";
            let hash = unhex(hash).unwrap_or_default();
            connection.row(query, params![&hash], |row| row.get(0))?
        }
        // A pin that was removed since is known.
        Line::Pin { cache, name, .. } => {
            let query = "select exists (select 1 from pin where cache_id = ?1 and name = ?2) \
                 or exists (select 1 from removed_pin where cache_id = ?1 and name = ?2)";
            match cache_id(connection, cache)? {
                Some(cache) => connection.row(query, params![cache, name], |row| row.get(0))?,
                None => false,
            }
        }
        // The lines of last uses name all paths. Paths whose narinfos are in the directory need no
        // backup.
        Line::Use { cache, path, .. } => {
            let query = concat!(
                "select exists (select 1 from path where cache_id = ?1 and hash_part = ?2) \
                 or coalesce(?1 = ",
                mirrored_id!(),
                ", false)"
            );
            let hash_part = unhex(path).unwrap_or_default();
            match cache_id(connection, cache)? {
                Some(cache) => {
                    connection.row(query, params![cache, &hash_part], |row| row.get(0))?
                }
                None => false,
            }
        }
        _ => true,
    };
    Ok(!is_known)
}

/// Restores a line of any kind but narinfos.
// Long: a statement for each kind.
fn restore_line(transaction: &Transaction<'_>, line: &Line) -> Result<(), StorageError> {
    match line {
        Line::Token {
            hash,
            name,
            cache,
            names,
            rights,
            created_at,
            expires_at,
            revoked_at,
        } => {
            let hash = unhex(hash).ok_or_else(|| damaged("a hash is not hexadecimal"))?;
            transaction.execute(
                "insert into token \
                 (hash, name, cache, names, rights, created_at, expires_at, revoked_at) \
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) on conflict (hash) do nothing",
                params![
                    &hash,
                    name,
                    cache.as_ref(),
                    names.as_ref(),
                    *rights,
                    *created_at,
                    *expires_at,
                    *revoked_at
                ],
            )?;
            transaction.note(Change::TokensChanged);
        }
        Line::Pin { cache, .. } | Line::RemovedPin { cache, .. } => {
            if let Some(cache) = cache_id(transaction, cache)? {
                restore_pin(transaction, cache, line)?;
                transaction.note(Change::PinsChanged(cache));
            }
        }
        Line::Use {
            cache,
            path,
            at,
            day,
        } => {
            let used_at = at.or(day.map(|day| day.saturating_mul(DAY)));
            if let (Some(cache), Some(used_at)) = (cache_id(transaction, cache)?, used_at) {
                let hash_part = unhex(path).unwrap_or_default();
                transaction.execute(
                    "update path set used_at = ?3 where cache_id = ?1 and hash_part = ?2",
                    params![cache, &hash_part, used_at],
                )?;
            }
        }
        Line::MirroredCache { .. } | Line::Narinfo { .. } | Line::Unknown => {}
    }
    Ok(())
}

/// Restores a generation, or the number of a removed one.
fn restore_pin(
    transaction: &Transaction<'_>,
    cache: CacheId,
    line: &Line,
) -> Result<(), StorageError> {
    match line {
        Line::RemovedPin {
            name,
            generation,
            removed_at,
            ..
        } => {
            transaction.execute(
                "insert into removed_pin (cache_id, name, generation, removed_at) \
                 values (?1, ?2, ?3, ?4) on conflict (cache_id, name) do nothing",
                params![cache, name, *generation, *removed_at],
            )?;
        }
        Line::Pin {
            name,
            generation,
            path,
            created_at,
            expires_at,
            token,
            host,
            message,
            lineage,
            ..
        } => {
            let hash_part = unhex(path).unwrap_or_default();
            let lineage = match lineage.as_deref().and_then(unhex) {
                Some(lineage) => lineage,
                None => lineage_of(transaction, cache, name)?,
            };
            transaction.execute(
                "insert into pin (cache_id, name, generation, path_id, created_at, expires_at, \
                     token_name, host, message, lineage) \
                 select ?1, ?2, ?3, id, ?5, ?6, ?7, ?8, ?9, ?10 from path \
                 where cache_id = ?1 and hash_part = ?4 \
                 on conflict (cache_id, name, generation) do nothing",
                params![
                    cache,
                    name,
                    *generation,
                    &hash_part,
                    *created_at,
                    *expires_at,
                    token.as_ref(),
                    host.as_ref(),
                    message.as_ref(),
                    &lineage
                ],
            )?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns the lineage of some generation of a pin, or a new one.
fn lineage_of(
    connection: &Connection<'_>,
    cache: CacheId,
    name: &str,
) -> Result<Vec<u8>, StorageError> {
    let query = "select lineage from pin where cache_id = ?1 and name = ?2 limit 1";
    match connection.optional(query, params![cache, name], |row| row.get(0))? {
        Some(lineage) => Ok(lineage),
        None => Ok(random()?.to_vec()),
    }
}

fn cache_id(connection: &Connection<'_>, name: &str) -> Result<Option<CacheId>, StorageError> {
    let query = "select id from cache where name = ?1";
    connection.optional(query, params![name], |row| row.get(0))
}

/// Writes the narinfos of all caches that the directory does not mirror, references first. Returns
/// the fault of the first path that is left out because its row is damaged.
fn dump_paths(
    connection: &Connection<'_>,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Option<StorageError>, StorageError> {
    let query = concat!(
        "select cache_id, cache.name, store_dir, hash_part from path \
         join cache on cache.id = cache_id where cache_id is distinct from ",
        mirrored_id!(),
        " and ",
        is_of_uploads!(),
        " order by path.id"
    );
    let mut fault = None;
    connection.each(query, &[], |row| {
        let (cache, dir): (CacheId, &str) = (row.get(0)?, row.get(2)?);
        match narinfo(connection, cache, dir, HashPart::from_bytes(row.get(3)?)) {
            Ok(Some(text)) => {
                let cache = row.get(1)?;
                write(&Line::Narinfo { cache, text }.text()?)?;
            }
            Ok(None) => {}
            Err(error @ StorageError::Damaged(_)) => fault = fault.take().or(Some(error)),
            Err(error) => return Err(error),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(fault)
}

/// Returns the narinfo of a path in a cache with this store directory. `None`: the path is lost.
fn narinfo(
    connection: &Connection<'_>,
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
        run(
            &database,
            &[
                "insert into meta values ('mirrored-cache', '1')",
                "insert into cache values (1, 'default', '/nix/store', 0, 0, 0, 0)",
                "insert into nar values \
                 (1, x'01', 1, x'01', 100, 'none', 'nar/1.nar', null, null, 0, 1, 0)",
                "insert into path values \
                 (1, 1, x'0101010101010101010101010101010101010101', 'app', 1, 0, null, null, '', \
                  0, null, 0, null, 0)",
            ],
        );
        (dir, database)
    }

    fn run(database: &Database, statements: &[&str]) {
        let run = |transaction: &Transaction<'_>| {
            let mut statements = statements.iter();
            statements.try_for_each(|statement| transaction.execute(statement, &[]).map(drop))
        };
        database.write(run).unwrap();
    }

    fn dumped(database: &Database) -> Vec<String> {
        let mut lines = Vec::new();
        let mut write = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        dump(database, &mut write).unwrap();
        lines
    }

    #[test]
    fn restored_pins_have_their_origin_and_their_numbers() {
        let (_dir, database) = database();
        run(
            &database,
            &[
                "insert into pin values \
                 (1, 1, 'main', 4, 1, 5, 9, 'ci', 'box', 'a message', x'01'), \
                 (2, 1, 'main', 5, 1, 6, null, null, null, null, x'02'), \
                 (3, 1, 'gone', 7, 1, 6, null, null, null, null, x'03')",
                "delete from pin where name = 'gone'",
            ],
        );
        let lines = dumped(&database);
        assert!(lines.iter().any(|line| line.contains("\"a message\"")));
        assert!(lines.iter().any(|line| line.contains("\"removed-pin\"")));
        let (_other_dir, other) = self::database();
        assert!(lacks_any(&other, &lines).unwrap());
        let restore = |transaction: &Transaction<'_>| {
            let mut lines = lines.iter();
            lines.try_for_each(|line| restore_line(transaction, &Line::parse(line)?))
        };
        other.write(restore).unwrap();
        assert_eq!(dumped(&other), lines);
        assert!(!lacks_any(&other, &lines).unwrap());
    }
}
