//! The pushes of clients, and the NARs and paths that they push.

use std::collections::{HashMap, HashSet};

use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_protocol::push::OpenLine;

use super::rows::{is_shown, is_usable, nar_columns, nar_of, path_of, signed};
use super::{CacheId, Client, Database, StoredNar, USE_INTERVAL, tokens, uses};
use crate::error::StorageError;
use crate::sql::{Connection, Transaction, Value, params, random};

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
    let query = Query { cache, client, now };
    let all: Vec<&OpenLine> = lines.iter().collect();
    let mut found = database.read(|connection| query.needs(connection, &all))?;
    let is_unrecorded = |answer: &Answer| answer.unrecorded.is_some();
    if found.iter().any(is_unrecorded) {
        let lines = all.iter().zip(&found);
        let lines = lines.filter(|(_, answer)| is_unrecorded(answer));
        let lines: Vec<&OpenLine> = lines.map(|(line, _)| *line).collect();
        // The collector may have deleted a path meanwhile.
        let again = database.write(|transaction| {
            let again = query.needs(transaction, &lines)?;
            let ids = again.iter().filter_map(|answer| answer.unrecorded);
            uses::record_paths(transaction, ids, now)?;
            Ok(again)
        })?;
        let unrecorded = found.iter_mut().filter(|answer| is_unrecorded(answer));
        for (answer, again) in unrecorded.zip(again) {
            *answer = again;
        }
    }
    Ok(found.into_iter().map(|answer| answer.need).collect())
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
    let query = concat!(
        "select ",
        nar_columns!(),
        " from nar where nar_hash = ?4 and state <> 3 and ",
        is_usable!(),
        " order by id"
    );
    let Client { token, is_reader } = client;
    let params = params![cache, token, is_reader, nar_hash.as_bytes()];
    database.read(|connection| connection.rows(query, params, nar_of))
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
        database.write_lazily(|transaction| hold(transaction, token, &[nar], now))?;
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
        let held = hold(transaction, token, ids, database.now())?;
        Ok(ids.iter().map(|id| held.contains(id)).collect())
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

/// Who asks what must be sent.
#[derive(Clone, Copy)]
struct Query {
    cache: CacheId,
    client: Client,
    now: i64,
}

/// What a client must send to push a path.
struct Answer {
    need: Need,
    /// The path, if its use now must be recorded before the client learns that it exists.
    unrecorded: Option<i64>,
}

/// A path that is not lost.
struct Found {
    id: i64,
    path: StorePath,
    nar: StoredNar,
    /// Whether its use now must be recorded.
    is_unrecorded: bool,
}

impl Query {
    /// Returns, for each of these paths in their order, what the client must send.
    fn needs(
        &self,
        connection: &Connection<'_>,
        lines: &[&OpenLine],
    ) -> Result<Vec<Answer>, StorageError> {
        let paths = self.paths(connection, lines)?;
        let other = |line: &&&OpenLine| !paths.contains_key(&line.hash_part);
        let other: Vec<&OpenLine> = lines.iter().filter(other).copied().collect();
        let nars = self.nars(connection, &other)?;
        let answer = |line: &&OpenLine| {
            let found = paths.get(&line.hash_part);
            let need = match found {
                Some(found) if line.path.as_ref().is_some_and(|path| *path != found.path) => {
                    Need::OtherPath(found.path.clone())
                }
                Some(found) => Need::Nothing(found.nar.clone()),
                None => {
                    let nar = nars.get(&line.nar_hash);
                    let nar = nar.filter(|nar| nar.nar_size == line.nar_size);
                    nar.cloned().map_or(Need::All, Need::Narinfo)
                }
            };
            let is_there = matches!(need, Need::Nothing(_));
            let unrecorded = found.filter(|found| is_there && found.is_unrecorded);
            Answer {
                need,
                unrecorded: unrecorded.map(|found| found.id),
            }
        };
        Ok(lines.iter().map(answer).collect())
    }

    /// Returns the paths with the hash parts of these lines, unless they are lost.
    fn paths(
        &self,
        connection: &Connection<'_>,
        lines: &[&OpenLine],
    ) -> Result<HashMap<HashPart, Found>, StorageError> {
        let query = concat!(
            "select ",
            nar_columns!(),
            ", path.id, used_at <= ?2 or condemned_at is not null, name, hash_part \
             from path join nar on nar.id = nar_id \
             where cache_id = ?1 and state <> 3 and ",
            is_shown!("?1"),
            " and hash_part"
        );
        let params = params![self.cache, self.now - USE_INTERVAL];
        let keys = lines.iter().map(|line| line.hash_part.as_bytes().into());
        let keys: Vec<Value<'_>> = keys.collect();
        let mut found = HashMap::new();
        connection.each_of(query, params, &keys, |row| {
            let hash_part = HashPart::from_bytes(row.get(10)?);
            let path = Found {
                id: row.get(7)?,
                path: path_of(hash_part, row.get(9)?)?,
                nar: nar_of(row)?,
                is_unrecorded: row.get(8)?,
            };
            found.insert(hash_part, path);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns, for each NAR hash of these lines, the first stored NAR that the client may use.
    fn nars(
        &self,
        connection: &Connection<'_>,
        lines: &[&OpenLine],
    ) -> Result<HashMap<NarHash, StoredNar>, StorageError> {
        let query = concat!(
            "select ",
            nar_columns!(),
            " from nar where state <> 3 and ",
            is_usable!(),
            " and nar_hash"
        );
        let Client { token, is_reader } = self.client;
        let params = params![self.cache, token, is_reader];
        let keys = lines.iter().map(|line| line.nar_hash.as_bytes().into());
        let keys: Vec<Value<'_>> = keys.collect();
        let mut found: HashMap<NarHash, StoredNar> = HashMap::new();
        connection.each_of(query, params, &keys, |row| {
            let nar = nar_of(row)?;
            match found.get(&nar.nar_hash) {
                Some(first) if first.id <= nar.id => {}
                _ => {
                    found.insert(nar.nar_hash, nar);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Returns the time at which a NAR was sent with this token.
fn sent_at(connection: &Connection<'_>, token: i64, nar: i64) -> Result<Option<i64>, StorageError> {
    let query = "select sent_at from sent where token_id = ?1 and nar_id = ?2";
    connection.optional(query, params![token, nar], |row| row.get(0))
}

/// Holds NARs for a token as if they were sent now, and revives them. Returns those that exist. If
/// the client has not sent a NAR, the client may use it only as long as it may read it.
fn hold(
    transaction: &Transaction<'_>,
    token: i64,
    nars: &[i64],
    now: i64,
) -> Result<HashSet<i64>, StorageError> {
    uses::revive_nars(transaction, nars, now)?;
    let mut held = HashSet::new();
    let ids: Vec<Value<'_>> = nars.iter().copied().map(Value::from).collect();
    let query = "select id from nar where state <> 3 and id";
    transaction.each_of(query, &[], &ids, |row| {
        held.insert(row.get(0)?);
        Ok(())
    })?;
    let ids: Vec<Value<'_>> = held.iter().copied().map(Value::from).collect();
    let update = "update sent set sent_at = ?2 where token_id = ?1 and nar_id";
    if transaction.execute_of(update, params![token, now], &ids)? < ids.len() {
        // The client has found the others, and not sent them.
        let insert = "insert into sent (token_id, nar_id, sent_at, is_held) \
             select ?1, id, ?2, 1 from nar where not exists \
                 (select 1 from sent where token_id = ?1 and nar_id = nar.id) and id";
        transaction.execute_of(insert, params![token, now], &ids)?;
    }
    Ok(held)
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
