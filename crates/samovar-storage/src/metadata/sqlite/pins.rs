//! Statements about pins.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use samovar_nix::HashPart;

use super::paths;
use super::rows::path_of;
use crate::error::StorageError;
use crate::metadata::{NewPin, Pin};

const COLUMNS: &str = "select cache.name, pin.name, generation, hash_part, path.name, \
                       pin.created_at, expires_at \
                       from pin join cache on cache.id = pin.cache_id \
                       join path on path.id = pin.path_id";

pub(super) fn add(
    transaction: &Transaction<'_>,
    new: &NewPin,
    now: i64,
) -> Result<Option<Pin>, StorageError> {
    let found: Option<(i64, i64)> = transaction
        .query_row(
            "select path.id, cache.id from path join cache on cache.id = path.cache_id \
             where cache.name = ?1 and deletion = 0 and hash_part = ?2",
            params![new.cache, new.hash_part.as_bytes()],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let Some((path, cache)) = found else {
        return Ok(None);
    };
    paths::record_use(transaction, path, now)?;
    let newest: Option<(i64, i64)> = transaction
        .query_row(
            "select generation, path_id from pin where cache_id = ?1 and name = ?2 \
             order by generation desc limit 1",
            params![cache, new.name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let generation = match newest {
        Some((generation, same)) if same == path => generation,
        Some((generation, _other)) => generation + 1,
        None => 1,
    };
    transaction.execute(
        "insert into pin (cache_id, name, generation, path_id, created_at, expires_at) \
         values (?1, ?2, ?3, ?4, ?5, ?6) \
         on conflict (cache_id, name, generation) do update set expires_at = excluded.expires_at",
        params![cache, new.name, generation, path, now, new.expires_at],
    )?;
    if let Some(keep) = new.keep {
        transaction.execute(
            "delete from pin where cache_id = ?1 and name = ?2 and generation <= ?3",
            params![cache, new.name, generation - i64::from(keep)],
        )?;
    }
    let query = format!("{COLUMNS} where pin.cache_id = ?1 and pin.name = ?2 and generation = ?3");
    let mut statement = transaction.prepare(&query)?;
    let mut rows = statement.query(params![cache, new.name, generation])?;
    rows.next()?.map(pin_of).transpose()
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
