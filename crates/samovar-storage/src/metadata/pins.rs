//! Adds, lists and removes pins.
//!
//! A pin has generations. Their numbers ascend, also after a removal. A number can stand for two
//! generations if the cache was deleted, or if an older copy of the database was restored; the two
//! generations have different lineages.

use std::collections::HashMap;

use samovar_nix::{Glob, HashPart};
use samovar_protocol::names::{Lineage, PinName, PinText};
use samovar_protocol::pins::Version;

use super::rows::{is_shown, path_of};
use super::tokens::{self, Permit};
use super::{CacheId, Database, NewPin, PIN_COUNT_MAX, Pin, Pinned, Unpin, Unpinned, uses};
use crate::error::StorageError;
use crate::sql::{Change, Row, Transaction, Value, params, random};

/// Maximum number of removed pins of a cache whose newest generations are recorded by name. This
/// limits what a client can store by adding pins that it removes or lets expire.
const REMOVED_COUNT_MAX: u32 = 10_000;

const COLUMNS: &str = "select cache.name, pin.name, generation, hash_part, path.name, \
                       pin.created_at, expires_at, token_name, host, message, lineage \
                       from pin join cache on cache.id = pin.cache_id \
                       join path on path.id = pin.path_id";

/// Pins a path of a cache, and revives the path if it is condemned.
///
/// If the newest generation of the pin already has the path, only its expiry changes, and the
/// condition of the request is ignored: the request is probably a repetition.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn add(database: &Database, new: &NewPin) -> Result<Pinned, StorageError> {
    database.write(|transaction| {
        let now = database.now();
        let found: Option<(i64, CacheId, String)> = transaction.optional(
            "select path.id, cache.id, path.name from path join cache on cache.id = cache_id \
             where cache.name = ?1 and deletion = 0 and hash_part = ?2",
            params![&new.cache, new.hash_part.as_bytes()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
        let Some((path, cache, path_name)) = found else {
            return Ok(Pinned::NotFound);
        };
        let has_names = |names: &Glob| new.name.is_permitted(names) && names.matches(&path_name);
        if let Some(token) = new.token {
            match tokens::permit(transaction, token, now, has_names)? {
                Permit::Granted => {}
                Permit::Invalid => return Ok(Pinned::TokenInvalid),
                Permit::OtherName(names) => return Ok(Pinned::OtherName(names)),
            }
        }
        let name = new.name.as_str();
        let newest = newest_of(transaction, cache, name, now)?;
        let same = newest.filter(|(_, newest)| *newest == path);
        let newest = newest.map(|(version, _)| version);
        if same.is_none() && !new.condition.holds(newest) {
            return Ok(Pinned::Changed(newest));
        }
        let version = match same {
            Some((version, _)) => version,
            None => next(transaction, cache, name)?,
        };
        if new.token.is_some() && same.is_none() && is_full(transaction, cache, new)? {
            return Ok(Pinned::TooMany);
        }
        uses::record_path(transaction, path, now)?;
        transaction.note(Change::PinsChanged(cache));
        insert(transaction, new, (cache, path, version), now)?;
        transaction.execute(
            "delete from removed_pin where cache_id = ?1 and name = ?2",
            params![cache, name],
        )?;
        if let Some(keep) = new.keep {
            transaction.execute(
                "delete from pin where cache_id = ?1 and name = ?2 and generation <= \
                     (select generation from pin where cache_id = ?1 and name = ?2 \
                      order by generation desc limit 1 offset ?3)",
                params![cache, name, keep],
            )?;
        }
        let query =
            format!("{COLUMNS} where pin.cache_id = ?1 and pin.name = ?2 and generation = ?3");
        let params = params![cache, name, version.number.cast_signed()];
        Ok(Pinned::Done(transaction.row(&query, params, pin_of)?))
    })
}

/// Returns all pins, sorted by cache and name, the newest generation first. Includes
/// generations that have expired and are not removed yet.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn all(database: &Database) -> Result<Vec<Pin>, StorageError> {
    database.read(|connection| {
        let query = format!("{COLUMNS} order by cache.name, pin.name, generation desc");
        connection.rows(&query, &[], pin_of)
    })
}

/// Returns generations of a pin that have not expired, newest first: those with a number less
/// than `below`, at most `count_max`. A cache that is being deleted has none.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn generations(
    database: &Database,
    cache: CacheId,
    name: &PinName,
    below: i64,
    count_max: u32,
) -> Result<Vec<Pin>, StorageError> {
    database.read(|connection| {
        let query = format!(
            "{COLUMNS} where pin.cache_id = ?1 and pin.name = ?2 and generation < ?3 \
             and deletion = 0 and (expires_at is null or expires_at > ?4) \
             order by generation desc limit ?5"
        );
        let params = params![cache, name.as_str(), below, database.now(), count_max];
        connection.rows(&query, params, pin_of)
    })
}

/// Returns the first generation of each lineage of a pin, in descending order of their numbers, at
/// most `count_max` of them. Ignores generations that have expired, and those with numbers above
/// `newest`. Generations that were added one after the other have one lineage.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn lineages(
    database: &Database,
    cache: CacheId,
    name: &PinName,
    newest: i64,
    count_max: u32,
) -> Result<Vec<Version>, StorageError> {
    database.read(|connection| {
        let query = "select min(generation), lineage from pin where cache_id = ?1 and name = ?2 \
             and generation <= ?3 and (expires_at is null or expires_at > ?4) \
             group by lineage order by 1 desc limit ?5";
        let params = params![cache, name.as_str(), newest, database.now(), count_max];
        connection.rows(query, params, version_of)
    })
}

/// Returns the newest generation of each pin of a cache that has one that has not expired,
/// sorted by name. A cache that is being deleted has none.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn newest(database: &Database, cache: CacheId) -> Result<Vec<Pin>, StorageError> {
    database.read(|connection| {
        let query = format!(
            "{COLUMNS} where pin.cache_id = ?1 and deletion = 0 \
             and (expires_at is null or expires_at > ?2) and not exists \
                 (select 1 from pin as newer where newer.cache_id = ?1 \
                  and newer.name = pin.name and newer.generation > pin.generation \
                  and (newer.expires_at is null or newer.expires_at > ?2)) \
             order by pin.name"
        );
        connection.rows(&query, params![cache, database.now()], pin_of)
    })
}

/// Returns the number of the newest generation of each pin of a cache, by name, at less cost
/// than [`newest`].
///
/// # Errors
///
/// Any [`StorageError`].
pub fn newest_generations(
    database: &Database,
    cache: CacheId,
) -> Result<HashMap<String, i64>, StorageError> {
    database.read(|connection| {
        let query = concat!(
            "select name, max(generation) from pin where cache_id = ?1 and ",
            is_shown!("?1"),
            " and (expires_at is null or expires_at > ?2) group by name"
        );
        let rows = connection.rows(query, params![cache, database.now()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        Ok(rows.into_iter().collect())
    })
}

/// Removes all generations of a pin. Returns their number.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn remove(database: &Database, cache: &str, name: &str) -> Result<usize, StorageError> {
    let delete = "delete from pin where name = ?2 \
         and cache_id = (select id from cache where name = ?1) returning cache_id";
    database.write(|transaction| delete_some(transaction, delete, params![cache, name]))
}

/// Removes a pin, or one generation of it, for a client.
pub(crate) fn unpin(database: &Database, removal: &Unpin) -> Result<Unpinned, StorageError> {
    database.write(|transaction| {
        let now = database.now();
        let is_permitted = |names: &Glob| removal.name.is_permitted(names);
        match tokens::permit(transaction, removal.token, now, is_permitted)? {
            Permit::Granted => {}
            Permit::Invalid => return Ok(Unpinned::TokenInvalid),
            Permit::OtherName(names) => return Ok(Unpinned::OtherName(names)),
        }
        let (cache, name) = (removal.cache, removal.name.as_str());
        let newest = newest_of(transaction, cache, name, now)?;
        let newest = newest.map(|(version, _)| version);
        let exists: bool = transaction.row(
            concat!(
                "select ",
                is_shown!("?1"),
                " and exists (select 1 from pin where cache_id = ?1 and name = ?2 \
                 and (cast(?3 as bigint) is null or generation = ?3))"
            ),
            params![cache, name, removal.generation],
            |row| row.get(0),
        )?;
        if !exists {
            return Ok(Unpinned::Done(0));
        }
        if !removal.condition.holds(newest) {
            return Ok(Unpinned::Changed(newest));
        }
        let count = delete_some(
            transaction,
            "delete from pin where cache_id = ?1 and name = ?2 \
             and (cast(?3 as bigint) is null or generation = ?3) returning cache_id",
            params![cache, name, removal.generation],
        )?;
        limit_removed(transaction, cache, now)?;
        Ok(Unpinned::Done(count))
    })
}

/// Removes the generations that have expired. Returns their number.
pub(crate) fn remove_expired(database: &Database) -> Result<usize, StorageError> {
    let now = database.now();
    database.write(|transaction| {
        let delete = "delete from pin where expires_at <= ?1 returning cache_id";
        let count = delete_some(transaction, delete, params![now])?;
        let caches = "select distinct cache_id from removed_pin";
        for cache in transaction.rows(caches, &[], |row| row.get(0))? {
            limit_removed(transaction, cache, now)?;
        }
        Ok(count)
    })
}

/// Removes the expired generations of a pin. Returns the newest generation and the row number of
/// its path, or `None` if no generation is left.
fn newest_of(
    transaction: &Transaction<'_>,
    cache: CacheId,
    name: &str,
    now: i64,
) -> Result<Option<(Version, i64)>, StorageError> {
    transaction.execute(
        "delete from pin where cache_id = ?1 and name = ?2 and expires_at <= ?3",
        params![cache, name, now],
    )?;
    transaction.optional(
        "select generation, lineage, path_id from pin where cache_id = ?1 and name = ?2 \
         order by generation desc limit 1",
        params![cache, name],
        |row| Ok((version_of(row)?, row.get(2)?)),
    )
}

/// Returns the next generation of a pin. The new generation has the lineage of the generation with
/// the previous number; if there is none, a new lineage. The numbers of a pin without a recorded
/// number begin after all numbers that [`limit_removed`] has forgotten.
fn next(
    transaction: &Transaction<'_>,
    cache: CacheId,
    name: &str,
) -> Result<Version, StorageError> {
    let last = "select coalesce(max(generation), (select generation from removed_pin \
             where cache_id = ?1 and name = ''), 0) \
         from (select generation from pin where cache_id = ?1 and name = ?2 \
               union all \
               select generation from removed_pin where cache_id = ?1 and name = ?2) as its";
    let last: i64 = transaction.row(last, params![cache, name], |row| row.get(0))?;
    let lineage = "select lineage from pin where cache_id = ?1 and name = ?2 and generation = ?3";
    let lineage = transaction.optional(lineage, params![cache, name, last], |row| row.get(0))?;
    Ok(Version {
        number: (last + 1).unsigned_abs(),
        lineage: Some(Lineage::from_bytes(match lineage {
            Some(lineage) => lineage,
            None => random()?,
        })),
    })
}

/// Returns whether a new generation would exceed the limit of the cache for clients. Generations
/// that it replaces do not count.
fn is_full(
    transaction: &Transaction<'_>,
    cache: CacheId,
    new: &NewPin,
) -> Result<bool, StorageError> {
    let query = "select count(*), count(*) filter (where name = ?2) from pin where cache_id = ?1";
    let params = params![cache, new.name.as_str()];
    let (all, own): (i64, i64) =
        transaction.row(query, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let replaced = new.keep.map_or(0, |keep| own - (i64::from(keep) - 1));
    Ok(all - replaced.max(0) >= i64::from(PIN_COUNT_MAX))
}

/// Inserts a generation of a pin. If it exists, only its expiry changes.
fn insert(
    transaction: &Transaction<'_>,
    new: &NewPin,
    (cache, path, version): (CacheId, i64, Version),
    now: i64,
) -> Result<(), StorageError> {
    let lineage = version.lineage.map(|lineage| *lineage.as_bytes());
    transaction.execute(
        "insert into pin (cache_id, name, generation, path_id, created_at, expires_at, \
             token_name, host, message, lineage) \
         values (?1, ?2, ?3, ?4, ?5, ?6, (select name from token where id = ?7), ?8, ?9, ?10) \
         on conflict (cache_id, name, generation) do update set expires_at = excluded.expires_at",
        params![
            cache,
            new.name.as_str(),
            version.number.cast_signed(),
            path,
            now,
            new.expires_at,
            new.token,
            new.host.as_ref().map(PinText::as_str),
            new.message.as_ref().map(PinText::as_str),
            lineage.as_ref(),
        ],
    )?;
    Ok(())
}

/// Runs a statement that deletes generations and returns their caches. Returns their number.
fn delete_some(
    transaction: &Transaction<'_>,
    delete: &str,
    params: &[Value<'_>],
) -> Result<usize, StorageError> {
    let mut caches: Vec<CacheId> = transaction.rows(delete, params, |row| row.get(0))?;
    let count = caches.len();
    caches.sort_unstable();
    caches.dedup();
    for cache in caches {
        transaction.note(Change::PinsChanged(cache));
    }
    Ok(count)
}

/// Forgets which of the pins that were removed first had which number, if too many were removed.
/// The highest of these numbers stays recorded without a name: no number is assigned again.
fn limit_removed(
    transaction: &Transaction<'_>,
    cache: CacheId,
    now: i64,
) -> Result<(), StorageError> {
    // The rows of pins that have generations stay: their number is limited by the number of pins.
    const FORGOTTEN: &str = "from removed_pin where cache_id = ?1 and name in \
         (select name from removed_pin where cache_id = ?1 and name <> '' \
          and not exists (select 1 from pin \
              where pin.cache_id = ?1 and pin.name = removed_pin.name) \
          order by removed_at desc, name limit ?3 offset ?2)";
    let count = "select count(*) from removed_pin where cache_id = ?1 and name <> ''";
    let count: i64 = transaction.row(count, params![cache], |row| row.get(0))?;
    if count <= REMOVED_COUNT_MAX.into() {
        return Ok(());
    }
    let max = format!("select max(generation) {FORGOTTEN}");
    let params = params![cache, REMOVED_COUNT_MAX, count];
    let max: Option<i64> = transaction.row(&max, params, |row| row.get(0))?;
    let Some(max) = max else {
        return Ok(());
    };
    transaction.execute(
        "insert into removed_pin (cache_id, name, generation, removed_at) values (?1, '', ?2, ?3) \
         on conflict (cache_id, name) do update set removed_at = excluded.removed_at, \
         generation = case when removed_pin.generation < excluded.generation \
             then excluded.generation else removed_pin.generation end",
        params![cache, max, now],
    )?;
    transaction.execute(&format!("delete {FORGOTTEN}"), params)?;
    Ok(())
}

fn pin_of(row: &Row<'_>) -> Result<Pin, StorageError> {
    let hash_part = HashPart::from_bytes(row.get(3)?);
    Ok(Pin {
        cache: row.get(0)?,
        name: row.get(1)?,
        generation: row.get(2)?,
        path: path_of(hash_part, row.get(4)?)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
        token: row.get(7)?,
        host: row.get(8)?,
        message: row.get(9)?,
        lineage: Lineage::from_bytes(row.get(10)?),
    })
}

/// Reads a generation and its lineage.
fn version_of(row: &Row<'_>) -> Result<Version, StorageError> {
    Ok(Version {
        number: row.get::<i64>(0)?.unsigned_abs(),
        lineage: Some(Lineage::from_bytes(row.get(1)?)),
    })
}
