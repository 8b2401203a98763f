//! Verified NARs and their files: finds and records them.

mod record;

use std::time::Duration;

use super::rows::{is_shown, is_usable, nar_columns, nar_of, signed, unsigned};
use super::{CacheId, Client, Database, NewNar, OWN_LEN, StoredNar, uses};
use crate::error::StorageError;
use crate::sql::{Connection, params};

/// Returns the index of a NAR's zstd frames, or `None` if the NAR has no index.
pub(crate) fn frames(database: &Database, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
    database.read(|connection| {
        let query = "select frames from nar where id = ?1";
        let frames = connection.optional(query, params![nar_id], |row| row.get(0))?;
        Ok(frames.flatten())
    })
}

/// Replaces the index of a NAR's zstd frames. `None` removes it.
pub(crate) fn set_frames(
    database: &Database,
    nar_id: i64,
    frames: Option<&[u8]>,
) -> Result<(), StorageError> {
    let update = "update nar set frames = ?2 where id = ?1";
    database.write(|transaction| transaction.execute(update, params![nar_id, frames]))?;
    Ok(())
}

/// Returns the listing of a NAR, compressed with zstd. `None`: the NAR has no listing.
pub(crate) fn listing(database: &Database, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
    database.read(|connection| {
        let query = "select listing from nar where id = ?1";
        let listing = connection.optional(query, params![nar_id], |row| row.get(0))?;
        Ok(listing.flatten())
    })
}

/// Returns the NAR whose file has this hash, if the client may use it. Returns `None`
/// otherwise, and if the NAR is lost. Revives the NAR and the paths of the cache that use it,
/// if they are condemned.
pub(crate) fn find(
    database: &Database,
    cache: CacheId,
    client: Client,
    file_hash: &[u8; 32],
) -> Result<Option<StoredNar>, StorageError> {
    let file = |connection: &Connection<'_>| usable(connection, cache, client, file_hash);
    let found = database.read(file)?;
    let Some((nar, true)) = found else {
        return Ok(found.map(|(nar, _)| nar));
    };
    database.write(|transaction| {
        uses::revive_nars(transaction, &[nar.id], database.now())?;
        uses::record_nars(transaction, cache, &[nar.id], database.now())?;
        Ok(file(transaction)?.map(|(nar, _)| nar))
    })
}

/// Returns the object key of the NAR file with this hash, and whether it is lost, or `None`
/// if no such file is recorded. Revives the NAR if it is condemned.
pub(crate) fn object_key(
    database: &Database,
    file_hash: &[u8; 32],
) -> Result<Option<(String, bool)>, StorageError> {
    let find = |connection: &Connection<'_>| by_file(connection, file_hash);
    let key = match database.read(find)? {
        Some((id, 2, _)) => database.write(|transaction| {
            uses::revive_nars(transaction, &[id], database.now())?;
            find(transaction)
        })?,
        found => found,
    };
    Ok(key.map(|(_, state, key)| (key, state == 3)))
}

/// Returns the row number of the NAR whose file has this hash, or `None` if it is not recorded.
pub(crate) fn row(database: &Database, file_hash: &[u8; 32]) -> Result<Option<i64>, StorageError> {
    let found = database.read(|connection| by_file(connection, file_hash))?;
    Ok(found.map(|(id, _, _)| id))
}

/// Records verified NARs that were uploaded with `token`, in one transaction. Some may already
/// be recorded. Returns whether one of them was lost.
///
/// # Errors
///
/// [`StorageError::KeyInUse`] if the key of a NAR [is garbage](is_garbage);
/// [`StorageError::TokenInvalid`]. Other errors. Nothing is recorded then.
pub(crate) fn add(database: &Database, token: i64, new: &[NewNar]) -> Result<bool, StorageError> {
    database.write(|transaction| {
        let new: Vec<_> = new.iter().map(|new| (Some(token), new)).collect();
        let outcomes = record::record(transaction, &new, database.now())?;
        let mut outcomes = outcomes.into_iter();
        outcomes.try_fold(false, |were_lost, was_lost| Ok(were_lost | was_lost?))
    })
}

/// Records NARs of several tokens in one transaction, each with the id of its token, or `None` if
/// an upstream cache has sent it. Waits at most `patience` for the database. Returns an outcome for
/// each NAR: whether it was lost, [`StorageError::KeyInUse`] if its key [is garbage](is_garbage),
/// or [`StorageError::TokenInvalid`].
///
/// # Errors
///
/// Any other [`StorageError`]. No NAR is recorded then.
pub(crate) fn add_of_tokens(
    database: &Database,
    new: &[&(Option<i64>, NewNar)],
    patience: Duration,
) -> Result<Vec<Result<bool, StorageError>>, StorageError> {
    database.write_within(patience, |transaction| {
        let new: Vec<_> = new.iter().map(|(token, new)| (*token, new)).collect();
        record::record(transaction, &new, database.now())
    })
}

/// Returns whether a NAR was sent with this token.
pub(crate) fn has_sent(database: &Database, token: i64, nar: i64) -> Result<bool, StorageError> {
    database.read(|connection| {
        let query = "select exists (select 1 from sent \
                     where token_id = ?1 and nar_id = ?2 and is_held = 0)";
        connection.row(query, params![token, nar], |row| row.get(0))
    })
}

/// Returns the total length of the files that were uploaded with `token` and that no path uses
/// yet, in bytes. Each counts [`OWN_LEN`] more than it has.
pub(crate) fn loose_bytes(database: &Database, token: i64) -> Result<u64, StorageError> {
    database.read(|connection| {
        let query = "select cast(coalesce(sum(file_size + ?2), 0) as bigint) \
             from sent join nar on nar.id = nar_id \
             where token_id = ?1 and not exists (select 1 from path where path.nar_id = nar.id)";
        let params = params![token, signed(OWN_LEN)?];
        unsigned(connection.row(query, params, |row| row.get(0))?)
    })
}

/// Returns the NAR whose file has this hash, if the client may use it. Also returns whether the
/// NAR, or a path of the cache that uses it, is condemned.
fn usable(
    connection: &Connection<'_>,
    cache: CacheId,
    client: Client,
    file_hash: &[u8; 32],
) -> Result<Option<(StoredNar, bool)>, StorageError> {
    let query = concat!(
        "select ",
        nar_columns!(),
        ", state = 2 or exists ( \
             select 1 from path \
             where nar_id = nar.id and cache_id = ?1 and condemned_at is not null \
             limit 1 offset 0) \
         from nar where file_hash = ?4 and state <> 3 and ",
        is_usable!()
    );
    let params = params![cache, client.token, client.is_reader, file_hash];
    connection.optional(query, params, |row| Ok((nar_of(row)?, row.get(7)?)))
}

/// Returns the row number, the state and the object key of the NAR whose file has this hash.
fn by_file(
    connection: &Connection<'_>,
    file_hash: &[u8; 32],
) -> Result<Option<(i64, i64, String)>, StorageError> {
    let query = "select id, state, object_key from nar where file_hash = ?1";
    connection.optional(query, params![file_hash], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })
}

/// Returns whether a deletion of the object with this key may still be in progress. Then a new
/// object must use another key.
pub(crate) fn is_garbage(database: &Database, object_key: &str) -> Result<bool, StorageError> {
    database.read(|connection| is_garbage_in(connection, object_key))
}

fn is_garbage_in(connection: &Connection<'_>, key: &str) -> Result<bool, StorageError> {
    let query = "select exists (select 1 from garbage where object_key = ?1)";
    connection.row(query, params![key], |row| row.get(0))
}
