//! Statements about pins.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use samovar_nix::{Glob, HashPart};

use super::paths;
use super::rows::{damaged, path_of};
use super::tokens::{self, Permit};
use crate::error::StorageError;
use crate::metadata::{NewPin, PIN_COUNT_MAX, Pin, Pinned};

const COLUMNS: &str = "select cache.name, pin.name, generation, hash_part, path.name, \
                       pin.created_at, expires_at \
                       from pin join cache on cache.id = pin.cache_id \
                       join path on path.id = pin.path_id";

pub(super) fn add(
    transaction: &Transaction<'_>,
    new: &NewPin,
    now: i64,
) -> Result<Pinned, StorageError> {
    let found: Option<(i64, i64, String)> = transaction
        .query_row(
            "select path.id, cache.id, path.name from path join cache on cache.id = cache_id \
             where cache.name = ?1 and deletion = 0 and hash_part = ?2",
            params![new.cache, new.hash_part.as_bytes()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let Some((path, cache, path_name)) = found else {
        return Ok(Pinned::NotFound);
    };
    let name = new.name.as_str();
    let has_names = |names: &Glob| names.matches(name) && names.matches(&path_name);
    if let Some(token) = new.token {
        match tokens::permit(transaction, token, now, has_names)? {
            Permit::Granted => {}
            Permit::Invalid => return Ok(Pinned::TokenInvalid),
            Permit::OtherName(names) => return Ok(Pinned::OtherName(names)),
        }
    }
    let newest: Option<(i64, i64)> = transaction
        .query_row(
            "select generation, path_id from pin where cache_id = ?1 and name = ?2 \
             order by generation desc limit 1",
            params![cache, name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let (generation, is_new) = match newest {
        Some((generation, same)) if same == path => (generation, false),
        Some((generation, _other)) => (generation + 1, true),
        None => (1, true),
    };
    let last_removed = new.keep.map_or(0, |keep| generation - i64::from(keep));
    if new.token.is_some() && is_new {
        // Generations that `keep` removes do not count.
        let count: u32 = transaction.query_row(
            "select count(*) from pin \
             where cache_id = ?1 and not (name = ?2 and generation <= ?3)",
            params![cache, name, last_removed],
            |row| row.get(0),
        )?;
        if count >= PIN_COUNT_MAX {
            return Ok(Pinned::TooMany);
        }
    }
    paths::record_use(transaction, path, now)?;
    insert(transaction, new, (cache, path, generation), now)?;
    transaction.execute(
        "delete from pin where cache_id = ?1 and name = ?2 and generation <= ?3",
        params![cache, name, last_removed],
    )?;
    let query = format!("{COLUMNS} where pin.cache_id = ?1 and pin.name = ?2 and generation = ?3");
    let mut statement = transaction.prepare(&query)?;
    let mut rows = statement.query(params![cache, name, generation])?;
    let row = rows
        .next()?
        .ok_or_else(|| damaged("the new pin is missing"))?;
    Ok(Pinned::Done(pin_of(row)?))
}

/// Inserts a generation of a pin. If it exists, only its expiry changes.
fn insert(
    transaction: &Transaction<'_>,
    new: &NewPin,
    (cache, path, generation): (i64, i64, i64),
    now: i64,
) -> Result<(), StorageError> {
    transaction.execute(
        "insert into pin (cache_id, name, generation, path_id, created_at, expires_at) \
         values (?1, ?2, ?3, ?4, ?5, ?6) \
         on conflict (cache_id, name, generation) do update set expires_at = excluded.expires_at",
        params![
            cache,
            new.name.as_str(),
            generation,
            path,
            now,
            new.expires_at
        ],
    )?;
    Ok(())
}

pub(super) fn all(connection: &Connection) -> Result<Vec<Pin>, StorageError> {
    let query = format!("{COLUMNS} order by cache.name, pin.name, generation desc");
    let mut statement = connection.prepare(&query)?;
    let mut rows = statement.query([])?;
    let mut pins = Vec::new();
    while let Some(row) = rows.next()? {
        pins.push(pin_of(row)?);
    }
    Ok(pins)
}

pub(super) fn remove(
    connection: &Connection,
    cache: &str,
    name: &str,
) -> Result<usize, StorageError> {
    Ok(connection.execute(
        "delete from pin where name = ?2 and cache_id = (select id from cache where name = ?1)",
        params![cache, name],
    )?)
}

pub(super) fn remove_expired(connection: &Connection, now: i64) -> Result<usize, StorageError> {
    Ok(connection.execute("delete from pin where expires_at <= ?1", [now])?)
}

fn pin_of(row: &Row<'_>) -> Result<Pin, StorageError> {
    let hash_part = HashPart::from_bytes(row.get(3)?);
    Ok(Pin {
        cache: row.get(0)?,
        name: row.get(1)?,
        generation: row.get(2)?,
        path: path_of(hash_part, &row.get::<_, String>(4)?)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
    })
}
