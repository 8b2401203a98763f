//! The pushes of clients, and the NARs and paths that they push.

use samovar_nix::{NarHash, StorePath};
use samovar_protocol::push::OpenLine;

use super::rows::{is_shown, is_usable, nar_columns, nar_of, path_of, signed};
use super::{CacheId, Client, Database, StoredNar, USE_INTERVAL, tokens, uses};
use crate::error::StorageError;
use crate::sql::{Connection, Transaction, params, random};

/// Minimum age in seconds at which the time is renewed at which a NAR was sent.
const RENEWAL_INTERVAL: i64 = 600;

/// What a client must send to push a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the cache has a path with this hash part, which has this NAR.
    Nothing(StoredNar),
    /// Only the narinfo: this NAR is stored, and the client may use it.
    Narinfo(StoredNar),
    /// Both the NAR and the narinfo.
    All,
    /// The cache has this path, which has the same hash part and another name than the line states.
    OtherPath(StorePath),
}

/// Limits of the pushes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushLimits {
    /// Maximum number of pushes of a token that have not expired.
    pub count_max: usize,
    /// Time from the last request of a push to its expiry, in seconds.
    pub lifetime: i64,
    /// Time in seconds by which the recorded expiry may be too early, so that not every request has
    /// to update it.
    pub tolerance: i64,
}

/// Returns, for each of these paths in their order, what the client must send.
/// Records a use of each path that exists, and revives it if it is condemned.
pub(crate) fn needs(
    database: &Database,
    cache: CacheId,
    client: Client,
    lines: &[OpenLine],
) -> Result<Vec<Need>, StorageError> {
    let now = database.now();
    let found = database.read(|connection| {
        let lines = lines.iter();
        let needs = lines.map(|line| need(connection, cache, client, line, now));
        needs.collect::<Result<Vec<_>, _>>()
    })?;
    if found.iter().all(Result::is_ok) {
        return Ok(found.into_iter().flatten().collect());
    }
    database.write(|transaction| {
        let found = found.iter().zip(lines);
        let needs = found.map(|(need, line)| match need {
            Ok(need) => Ok(need.clone()),
            Err(Unrecorded(_)) => need_and_record(transaction, cache, client, line, now),
        });
        needs.collect()
    })
}

/// Returns the stored NARs with this hash that the client may use and that are not lost: one
/// for each file. The collector may delete them until [`hold_nars`] is
/// called.
pub(crate) fn usable_nars(
    database: &Database,
    cache: CacheId,
    client: Client,
    nar_hash: &NarHash,
) -> Result<Vec<StoredNar>, StorageError> {
    database.read(|connection| nars(connection, cache, client, nar_hash, u32::MAX))
}

/// Records that a NAR was sent with this token now, and revives it, if the token has sent it
/// before. `is_reader`: also if not. A recent record stays; a power cut may undo the change.
pub(crate) fn renew_nar(
    database: &Database,
    token: i64,
    nar: i64,
    is_reader: bool,
) -> Result<(), StorageError> {
    let now = database.now();
    let sent_at = database.read(|connection| sent_at(connection, token, nar))?;
    let is_due = match sent_at {
        Some(sent_at) => sent_at < now - RENEWAL_INTERVAL,
        None => is_reader,
    };
    if is_due {
        database.write_lazily(|transaction| hold_nar(transaction, token, nar, now))?;
    }
    Ok(())
}

/// Records that these NARs were sent with `token` now, and revives those that are condemned.
/// Returns, for each NAR, whether it still exists.
///
/// # Errors
///
/// [`StorageError::TokenInvalid`]. Other errors. Nothing is recorded then.
pub(crate) fn hold_nars(
    database: &Database,
    token: i64,
    ids: &[i64],
) -> Result<Vec<bool>, StorageError> {
    database.write(|transaction| {
        tokens::check(transaction, token, database.now())?;
        let ids = ids.iter();
        let held = ids.map(|id| hold_nar(transaction, token, *id, database.now()));
        held.collect()
    })
}

/// Opens a push and returns its identifier: 32 hexadecimal digits. Returns `None` if the token
/// has too many pushes.
pub(crate) fn open(
    database: &Database,
    cache: CacheId,
    token: i64,
    limits: &PushLimits,
) -> Result<Option<String>, StorageError> {
    database.write(|transaction| {
        let now = database.now();
        let count = "select count(*) from push where token_id = ?1 and expires_at > ?2";
        let count: i64 = transaction.row(count, params![token, now], |row| row.get(0))?;
        if count >= signed(limits.count_max as u64)? {
            return Ok(None);
        }
        let id = format!("{:032x}", u128::from_le_bytes(random()?));
        transaction.execute(
            "insert into push (id, cache_id, token_id, expires_at) values (?1, ?2, ?3, ?4)",
            params![&id, cache, token, expiry(limits, now)],
        )?;
        Ok(Some(id))
    })
}

/// Returns whether this push exists and belongs to the cache and the token. Defers its expiry.
pub(crate) fn touch(
    database: &Database,
    id: &str,
    cache: CacheId,
    token: i64,
    limits: &PushLimits,
) -> Result<bool, StorageError> {
    let now = database.now();
    let expires_at = database.read(|connection| expires_at(connection, id, cache, token, now))?;
    match expires_at {
        None => Ok(false),
        Some(expires_at) if expires_at >= now.saturating_add(limits.lifetime) => Ok(true),
        Some(_) => database.write(|transaction| defer(transaction, id, limits, now)),
    }
}

/// Ends a push of the cache and the token. Returns whether it existed.
pub(crate) fn close(
    database: &Database,
    id: &str,
    cache: CacheId,
    token: i64,
) -> Result<bool, StorageError> {
    // If a power cut undoes this, the push expires later.
    let delete = "delete from push where id = ?1 and cache_id = ?2 and token_id = ?3";
    database
        .write_lazily(|transaction| Ok(transaction.execute(delete, params![id, cache, token])? > 0))
}

/// Returns the identifiers of the pushes of a token. `None`: of all tokens.
pub(crate) fn all(database: &Database, token: Option<i64>) -> Result<Vec<String>, StorageError> {
    database.read(|connection| {
        let query = "select id from push where cast(?1 as bigint) is null or token_id = ?1";
        connection.rows(query, params![token], |row| row.get(0))
    })
}

/// Ends the pushes that have expired.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn remove_expired(database: &Database) -> Result<(), StorageError> {
    let delete = "delete from push where expires_at <= ?1";
    database.write(|transaction| transaction.execute(delete, params![database.now()]))?;
    Ok(())
}

/// This path is used now, and the use must be recorded.
struct Unrecorded(Found);

/// Returns what a client must send to push a path. Returns [`Unrecorded`] if the path exists but
/// its use must first be [recorded](need_and_record).
fn need(
    connection: &Connection<'_>,
    cache: CacheId,
    client: Client,
    line: &OpenLine,
    now: i64,
) -> Result<Result<Need, Unrecorded>, StorageError> {
    let found = path(connection, cache, line, now)?;
    Ok(match found {
        Some(found) if line.path.as_ref().is_some_and(|path| *path != found.path) => {
            Ok(Need::OtherPath(found.path))
        }
        Some(found) if found.is_unrecorded => Err(Unrecorded(found)),
        Some(found) => Ok(Need::Nothing(found.nar)),
        None => {
            let nar = nars(connection, cache, client, &line.nar_hash, 1)?.pop();
            let nar = nar.filter(|nar| nar.nar_size == line.nar_size);
            Ok(nar.map_or(Need::All, Need::Narinfo))
        }
    })
}

/// Returns what a client must send to push a path. If the path exists, records a use of it.
fn need_and_record(
    transaction: &Transaction<'_>,
    cache: CacheId,
    client: Client,
    line: &OpenLine,
    now: i64,
) -> Result<Need, StorageError> {
    match need(transaction, cache, client, line, now)? {
        Ok(need) => Ok(need),
        Err(Unrecorded(found)) => {
            uses::record_path(transaction, found.id, now)?;
            Ok(Need::Nothing(found.nar))
        }
    }
}

/// A path that is not lost.
struct Found {
    id: i64,
    path: StorePath,
    nar: StoredNar,
    /// Whether its use now must be recorded.
    is_unrecorded: bool,
}

/// Returns the path with the hash part of a line, unless it is lost.
fn path(
    connection: &Connection<'_>,
    cache: CacheId,
    line: &OpenLine,
    now: i64,
) -> Result<Option<Found>, StorageError> {
    let query = concat!(
        "select ",
        nar_columns!(),
        ", path.id, used_at <= ?3 or condemned_at is not null, name \
         from path join nar on nar.id = nar_id \
         where cache_id = ?1 and hash_part = ?2 and state <> 3 and ",
        is_shown!("?1")
    );
    let params = params![cache, line.hash_part.as_bytes(), now - USE_INTERVAL];
    connection.optional(query, params, |row| {
        Ok(Found {
            id: row.get(7)?,
            path: path_of(line.hash_part, row.get(9)?)?,
            nar: nar_of(row)?,
            is_unrecorded: row.get(8)?,
        })
    })
}

/// Returns the stored NARs with this hash that the client may use, at most `count_max`.
fn nars(
    connection: &Connection<'_>,
    cache: CacheId,
    client: Client,
    nar_hash: &NarHash,
    count_max: u32,
) -> Result<Vec<StoredNar>, StorageError> {
    let query = concat!(
        "select ",
        nar_columns!(),
        " from nar where nar_hash = ?1 and state <> 3 and ",
        is_usable!(),
        " order by id limit ?5"
    );
    let params = params![
        nar_hash.as_bytes(),
        cache,
        client.token,
        client.is_reader,
        count_max
    ];
    connection.rows(query, params, nar_of)
}

/// Returns the time at which a NAR was sent with this token.
fn sent_at(connection: &Connection<'_>, token: i64, nar: i64) -> Result<Option<i64>, StorageError> {
    let query = "select sent_at from sent where token_id = ?1 and nar_id = ?2";
    connection.optional(query, params![token, nar], |row| row.get(0))
}

/// Holds a NAR for a token as if it was sent now, and revives it. Returns whether the NAR exists.
/// If the client has not sent the NAR, the client may use it only as long as it may read it.
fn hold_nar(
    transaction: &Transaction<'_>,
    token: i64,
    nar: i64,
    now: i64,
) -> Result<bool, StorageError> {
    uses::revive_nar(transaction, nar, now)?;
    let insert = "insert into sent (token_id, nar_id, sent_at, is_held) \
         select ?1, id, ?2, 1 from nar where id = ?3 and state <> 3 \
         on conflict (token_id, nar_id) do update set sent_at = excluded.sent_at";
    Ok(transaction.execute(insert, params![token, now, nar])? > 0)
}

/// Returns the time at which a push expires if no other request follows.
fn expires_at(
    connection: &Connection<'_>,
    id: &str,
    cache: CacheId,
    token: i64,
    now: i64,
) -> Result<Option<i64>, StorageError> {
    let query = "select expires_at from push \
                 where id = ?1 and cache_id = ?2 and token_id = ?3 and expires_at > ?4";
    connection.optional(query, params![id, cache, token, now], |row| row.get(0))
}

/// Defers the expiry of a push. Returns whether the push exists.
fn defer(
    connection: &Connection<'_>,
    id: &str,
    limits: &PushLimits,
    now: i64,
) -> Result<bool, StorageError> {
    let update = "update push set expires_at = ?2 where id = ?1";
    Ok(connection.execute(update, params![id, expiry(limits, now)])? > 0)
}

fn expiry(limits: &PushLimits, now: i64) -> i64 {
    now.saturating_add(limits.lifetime)
        .saturating_add(limits.tolerance)
}
