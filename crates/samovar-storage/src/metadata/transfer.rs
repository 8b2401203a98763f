//! Copies to another database what uploads do not make there: tokens, pins, realisations, and the
//! times of paths and build logs.

use std::collections::HashMap;

use samovar_nix::{HashPart, StorePath};

use super::rows::base_name;
use super::{CacheId, Database};
use crate::error::StorageError;
use crate::sql::{Change, Connection, Row, Transaction, Value, params};

/// The same cache in two databases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Both {
    pub(crate) from: CacheId,
    pub(crate) to: CacheId,
}

/// The times of a path, and its token.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub(crate) hash_part: HashPart,
    /// Time of the last use, in seconds since 1970.
    pub(crate) used_at: i64,
    /// Time of the publication, in seconds since 1970. `None`: it stays.
    pub(crate) registered_at: Option<i64>,
    /// Hash of the token with which a new path was uploaded.
    pub(crate) token: Option<Vec<u8>>,
}

/// A build log, as the database records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Log {
    /// Name of the derivation.
    pub(crate) name: String,
    /// Length of the log, in bytes.
    pub(crate) size: i64,
    /// Time of the upload, in seconds since 1970.
    pub(crate) uploaded_at: i64,
    /// Whether a path that the derivation has built was deleted.
    pub(crate) is_left: bool,
}

struct Token {
    hash: Vec<u8>,
    name: String,
    cache: Option<String>,
    names: Option<String>,
    rights: i64,
    created_at: i64,
    expires_at: Option<i64>,
    revoked_at: Option<i64>,
}

struct Generation {
    name: String,
    number: i64,
    hash_part: Vec<u8>,
    created_at: i64,
    expires_at: Option<i64>,
    token: Option<String>,
    host: Option<String>,
    message: Option<String>,
    lineage: Vec<u8>,
}

struct Realisation {
    key: String,
    /// The output; `None`: it is a path of the live Nix store.
    hash_part: Option<Vec<u8>>,
    body: String,
    sigs: String,
    recorded_at: i64,
}

/// Copies the tokens with their hashes, and revokes those that were revoked since an earlier copy.
/// Returns the number of tokens.
pub(crate) fn tokens(from: &Database, to: &Database) -> Result<usize, StorageError> {
    let query = "select hash, name, cache, names, rights, created_at, expires_at, revoked_at \
                 from token order by id";
    let of = |row: &Row<'_>| {
        Ok(Token {
            hash: row.get(0)?,
            name: row.get(1)?,
            cache: row.get(2)?,
            names: row.get(3)?,
            rights: row.get(4)?,
            created_at: row.get(5)?,
            expires_at: row.get(6)?,
            revoked_at: row.get(7)?,
        })
    };
    let tokens = from.read(|connection| connection.rows(query, &[], of))?;
    to.write(|transaction| {
        for token in &tokens {
            transaction.execute(
                "insert into token \
                 (hash, name, cache, names, rights, created_at, expires_at, revoked_at) \
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) on conflict (hash) do update set \
                     revoked_at = coalesce(token.revoked_at, excluded.revoked_at), \
                     expires_at = case when token.expires_at < excluded.expires_at \
                         then excluded.expires_at else token.expires_at end",
                params![
                    &token.hash,
                    &token.name,
                    token.cache.as_ref(),
                    token.names.as_ref(),
                    token.rights,
                    token.created_at,
                    token.expires_at,
                    token.revoked_at
                ],
            )?;
        }
        transaction.note(Change::TokensChanged);
        Ok(tokens.len())
    })
}

/// Copies the pins of a cache with the numbers and lineages of their generations. Removes those
/// generations that were removed since an earlier copy. Returns the number of generations whose
/// path the other database has, and of those whose path it lacks.
pub(crate) fn pins(
    (from, to): (&Database, &Database),
    cache: Both,
) -> Result<(usize, usize), StorageError> {
    let (pins, removed) = from.read(|connection| {
        connection.snapshot(|connection| {
            Ok((
                generations(connection, cache.from)?,
                removed_pins(connection, cache.from)?,
            ))
        })
    })?;
    if pins.is_empty() && removed.is_empty() {
        return Ok((0, 0));
    }
    to.write(|transaction| {
        remove_gone(transaction, cache.to, &pins, &removed)?;
        let mut copied = 0;
        for pin in &pins {
            copied += insert_generation(transaction, cache.to, pin)?;
        }
        for (name, number, removed_at) in &removed {
            transaction.execute(
                "insert into removed_pin (cache_id, name, generation, removed_at) \
                 select ?1, ?2, ?3, ?4 where not exists \
                     (select 1 from pin where cache_id = ?1 and name = ?2) \
                 on conflict (cache_id, name) do update set generation = \
                     case when removed_pin.generation < excluded.generation \
                     then excluded.generation else removed_pin.generation end",
                params![cache.to, name, *number, *removed_at],
            )?;
        }
        transaction.note(Change::PinsChanged(cache.to));
        Ok((copied, pins.len().saturating_sub(copied)))
    })
}

fn generations(
    connection: &Connection<'_>,
    cache: CacheId,
) -> Result<Vec<Generation>, StorageError> {
    let query = "select pin.name, generation, hash_part, pin.created_at, expires_at, token_name, \
                 host, message, lineage from pin join path on path.id = path_id \
                 where pin.cache_id = ?1 order by pin.id";
    connection.rows(query, params![cache], |row| {
        Ok(Generation {
            name: row.get(0)?,
            number: row.get(1)?,
            hash_part: row.get(2)?,
            created_at: row.get(3)?,
            expires_at: row.get(4)?,
            token: row.get(5)?,
            host: row.get(6)?,
            message: row.get(7)?,
            lineage: row.get(8)?,
        })
    })
}

/// Returns name, number and time of the removed pins.
fn removed_pins(
    connection: &Connection<'_>,
    cache: CacheId,
) -> Result<Vec<(String, i64, i64)>, StorageError> {
    let query = "select name, generation, removed_at from removed_pin where cache_id = ?1";
    connection.rows(query, params![cache], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
}

/// Inserts a generation, or updates its expiry. Returns 1 if the cache has its path, else 0.
fn insert_generation(
    transaction: &Transaction<'_>,
    cache: CacheId,
    pin: &Generation,
) -> Result<usize, StorageError> {
    let copied = transaction.execute(
        "insert into pin (cache_id, name, generation, path_id, created_at, expires_at, \
             token_name, host, message, lineage) \
         select ?1, ?2, ?3, id, ?5, ?6, ?7, ?8, ?9, ?10 from path \
         where cache_id = ?1 and hash_part = ?4 \
         on conflict (cache_id, name, generation) do update set expires_at = excluded.expires_at",
        params![
            cache,
            &pin.name,
            pin.number,
            &pin.hash_part,
            pin.created_at,
            pin.expires_at,
            pin.token.as_ref(),
            pin.host.as_ref(),
            pin.message.as_ref(),
            &pin.lineage
        ],
    )?;
    let remove = "delete from removed_pin where cache_id = ?1 and name = ?2";
    transaction.execute(remove, params![cache, &pin.name])?;
    Ok(copied)
}

/// Removes the generations that an earlier copy has made, and that are not among `pins` any more.
/// Leaves newer generations, which clients of this storage have added.
fn remove_gone(
    transaction: &Transaction<'_>,
    cache: CacheId,
    pins: &[Generation],
    removed: &[(String, i64, i64)],
) -> Result<(), StorageError> {
    for there in generations(transaction, cache)? {
        let own = pins.iter().filter(|pin| pin.name == there.name);
        let of_removed = removed.iter().filter(|(name, ..)| *name == there.name);
        let newest = own
            .clone()
            .map(|pin| pin.number)
            .chain(of_removed.map(|(_, number, _)| *number))
            .max();
        let is_kept = own.clone().any(|pin| {
            (pin.number, &pin.lineage, &pin.hash_part)
                == (there.number, &there.lineage, &there.hash_part)
        });
        if !is_kept && newest.is_some_and(|newest| there.number <= newest) {
            transaction.execute(
                "delete from pin where cache_id = ?1 and name = ?2 and generation = ?3",
                params![cache, &there.name, there.number],
            )?;
        }
    }
    Ok(())
}

/// Sets the times of paths of a cache, and the tokens of those that are new. The time of the last
/// use of a path that keeps its time of publication only becomes later.
pub(crate) fn set_times(
    to: &Database,
    cache: CacheId,
    times: &[Times],
) -> Result<(), StorageError> {
    to.write(|transaction| {
        for times in times {
            let key = times.hash_part;
            match times.registered_at {
                Some(at) => transaction.execute(
                    "update path set used_at = ?3, registered_at = ?4, \
                         token_id = (select id from token where hash = ?5) \
                     where cache_id = ?1 and hash_part = ?2",
                    params![
                        cache,
                        key.as_bytes(),
                        times.used_at,
                        at,
                        times.token.as_ref()
                    ],
                )?,
                None => transaction.execute(
                    "update path set used_at = ?3 \
                     where cache_id = ?1 and hash_part = ?2 and used_at < ?3",
                    params![cache, key.as_bytes(), times.used_at],
                )?,
            };
        }
        Ok(())
    })
}

/// Returns the hashes of the tokens with which paths were uploaded, by the row numbers of the
/// paths.
pub(crate) fn tokens_of(
    from: &Database,
    path_ids: &[i64],
) -> Result<HashMap<i64, Vec<u8>>, StorageError> {
    let keys: Vec<Value<'_>> = path_ids.iter().map(|id| (*id).into()).collect();
    from.read(|connection| {
        let mut hashes = HashMap::new();
        let query = "select path.id, token.hash from path join token on token.id = token_id \
                     where path.id";
        connection.each_of(query, &[], &keys, |row| {
            hashes.insert(row.get(0)?, row.get(1)?);
            Ok(())
        })?;
        Ok(hashes)
    })
}

/// Returns the references of a path that need not be in its cache.
pub(crate) fn outer_references(
    from: &Database,
    path_id: i64,
) -> Result<Vec<StorePath>, StorageError> {
    from.read(|connection| {
        let query = "select base_name from outer_reference where referrer = ?1";
        connection.rows(query, params![path_id], |row| base_name(row.get(0)?))
    })
}

/// Returns the build logs of a cache, sorted by name.
pub(crate) fn logs(database: &Database, cache: CacheId) -> Result<Vec<Log>, StorageError> {
    database.read(|connection| {
        let query = "select name, size, uploaded_at, is_left from log where cache_id = ?1 \
                     order by name";
        connection.rows(query, params![cache], |row| {
            Ok(Log {
                name: row.get(0)?,
                size: row.get(1)?,
                uploaded_at: row.get(2)?,
                is_left: row.get(3)?,
            })
        })
    })
}

/// Sets the time of a build log that was copied.
pub(crate) fn set_log(to: &Database, cache: CacheId, log: &Log) -> Result<(), StorageError> {
    to.write(|transaction| {
        transaction.execute(
            "update log set uploaded_at = ?3, is_left = ?4 where cache_id = ?1 and name = ?2",
            params![cache, &log.name, log.uploaded_at, i64::from(log.is_left)],
        )?;
        Ok(())
    })
}

/// Copies the realisations of a cache whose output the other database has. Returns their number.
pub(crate) fn realisations(
    (from, to): (&Database, &Database),
    cache: Both,
) -> Result<usize, StorageError> {
    let query = "select key, (select hash_part from path where id = path_id), body, sigs, \
                 recorded_at from extra where cache_id = ?1 order by key";
    let found = from.read(|connection| {
        connection.rows(query, params![cache.from], |row| {
            Ok(Realisation {
                key: row.get(0)?,
                hash_part: row.get(1)?,
                body: row.get(2)?,
                sigs: row.get(3)?,
                recorded_at: row.get(4)?,
            })
        })
    })?;
    if found.is_empty() {
        return Ok(0);
    }
    to.write(|transaction| {
        let mut copied = 0;
        for one in &found {
            copied += transaction.execute(
                "insert into extra (cache_id, key, path_id, body, sigs, recorded_at) \
                 select ?1, ?2, (select id from path where cache_id = ?1 and hash_part = ?3), \
                     ?4, ?5, ?6 where ?7 = 1 or exists \
                     (select 1 from path where cache_id = ?1 and hash_part = ?3) \
                 on conflict (cache_id, key) do update set sigs = excluded.sigs",
                params![
                    cache.to,
                    &one.key,
                    one.hash_part.as_ref(),
                    &one.body,
                    &one.sigs,
                    one.recorded_at,
                    one.hash_part.is_none()
                ],
            )?;
        }
        Ok(copied)
    })
}
