//! Records verified NARs.

use std::collections::{HashMap, HashSet};

use super::super::rows::signed;
use super::super::{NewNar, packs, tokens};
use crate::error::StorageError;
use crate::sql::{Dialect, Transaction, Value, params};

/// Number of columns of a recorded NAR.
const COLUMN_COUNT: usize = 9;

/// State of a NAR whose file is stored.
const LIVE: i64 = 1;

/// State of a NAR whose file is lost.
const LOST: i64 = 3;

/// The outcome for each NAR: whether it was lost, or [`StorageError::TokenInvalid`] or
/// [`StorageError::KeyInUse`].
type Outcomes = Vec<Result<bool, StorageError>>;

/// The states of NARs, by the hashes of their files.
type States = HashMap<[u8; 32], i64>;

/// Records NARs, each with the row number of its token. Those with an error are not recorded.
pub(super) fn record(
    transaction: &Transaction<'_>,
    new: &[(Option<i64>, &NewNar)],
    now: i64,
) -> Result<Outcomes, StorageError> {
    let mut valid = HashSet::new();
    for token in new
        .iter()
        .filter_map(|(token, _)| *token)
        .collect::<HashSet<_>>()
    {
        if tokens::permitted_names(transaction, token, now)?.is_some() {
            valid.insert(token);
        }
    }
    let (garbage, mut states) = stored(transaction, new)?;
    let mut accepted = Vec::with_capacity(new.len());
    let (mut placed, mut replaced) = (Vec::new(), Vec::new());
    let outcomes = new.iter().map(|(token, new)| {
        if token.is_some_and(|token| !valid.contains(&token)) {
            return Err(StorageError::TokenInvalid);
        }
        if garbage.contains(&new.nar.object_key) {
            return Err(StorageError::KeyInUse(new.nar.object_key.clone()));
        }
        accepted.push((*token, *new));
        let state = states.insert(new.nar.file_hash, LIVE);
        match (state, &new.pack) {
            (None, Some(place)) => placed.push((&new.nar.file_hash, place)),
            (Some(LOST), _) => replaced.push(*new),
            _ => {}
        }
        Ok(state == Some(LOST))
    });
    let outcomes = outcomes.collect();
    insert(transaction, &accepted, now)?;
    send(transaction, &accepted, now)?;
    packs::place(transaction, &placed)?;
    packs::replace(transaction, &replaced, now)?;
    packs::release_unused(transaction, new.iter().map(|(_, new)| *new), now)?;
    Ok(outcomes)
}

/// Returns the keys that are garbage, and the states of the NARs whose files are recorded.
fn stored(
    transaction: &Transaction<'_>,
    new: &[(Option<i64>, &NewNar)],
) -> Result<(HashSet<String>, States), StorageError> {
    let (mut garbage, mut states) = (HashSet::new(), HashMap::new());
    let keys = new.iter().map(|(_, new)| Value::from(&new.nar.object_key));
    let keys: Vec<Value<'_>> = keys.collect();
    let query = "select object_key from garbage where object_key";
    transaction.each_of(query, &[], &keys, |row| {
        garbage.insert(row.get(0)?);
        Ok(())
    })?;
    let hashes = new.iter().map(|(_, new)| Value::from(&new.nar.file_hash));
    let hashes: Vec<Value<'_>> = hashes.collect();
    let query = "select file_hash, state from nar where file_hash";
    transaction.each_of(query, &[], &hashes, |row| {
        states.insert(row.get(0)?, row.get(1)?);
        Ok(())
    })?;
    Ok((garbage, states))
}

fn insert(
    transaction: &Transaction<'_>,
    new: &[(Option<i64>, &NewNar)],
    now: i64,
) -> Result<(), StorageError> {
    match transaction.dialect() {
        Dialect::Sqlite => {
            let insert = "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, \
                 object_key, frames, listing, created_at, state_at) \
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9) \
                 on conflict (file_hash) do update set \
                     object_key = excluded.object_key, state = 1, state_at = excluded.state_at";
            for (_, new) in new {
                transaction.execute(insert, &columns(new, now)?)?;
            }
        }
        Dialect::Postgres => {
            // A statement must not insert a row and then change it.
            let last: HashMap<&[u8; 32], &NewNar> = new
                .iter()
                .map(|(_, new)| (&new.nar.file_hash, *new))
                .collect();
            let rows = last.values().map(|new| columns(new, now));
            let rows: Vec<[Value<'_>; COLUMN_COUNT]> = rows.collect::<Result<_, _>>()?;
            let column = |index| rows.iter().map(|row| row[index]).collect();
            let columns: [Vec<Value<'_>>; COLUMN_COUNT] = std::array::from_fn(column);
            let params = columns.each_ref().map(|column| Value::List(column));
            transaction.execute(
                "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, \
                     object_key, frames, listing, created_at, state_at) \
                 select its.*, its.at from unnest(?1::bytea[], ?2::bigint[], ?3::bytea[], \
                     ?4::bigint[], ?5::text[], ?6::text[], ?7::bytea[], ?8::bytea[], \
                     ?9::bigint[]) as its (a, b, c, d, e, f, g, h, at) \
                 on conflict (file_hash) do update set \
                     object_key = excluded.object_key, state = 1, state_at = excluded.state_at",
                &params,
            )?;
        }
    }
    Ok(())
}

fn columns<'v>(new: &'v NewNar, now: i64) -> Result<[Value<'v>; COLUMN_COUNT], StorageError> {
    let nar = &new.nar;
    Ok([
        nar.nar_hash.as_bytes().into(),
        signed(nar.nar_size)?.into(),
        (&nar.file_hash).into(),
        signed(nar.file_size)?.into(),
        nar.compression.name().into(),
        (&nar.object_key).into(),
        new.frames.as_ref().into(),
        new.listing.as_ref().into(),
        now.into(),
    ])
}

/// Records with which tokens the NARs were sent.
fn send(
    transaction: &Transaction<'_>,
    new: &[(Option<i64>, &NewNar)],
    now: i64,
) -> Result<(), StorageError> {
    let pairs = new
        .iter()
        .filter_map(|(token, new)| Some(((*token)?, &new.nar.file_hash)));
    match transaction.dialect() {
        Dialect::Sqlite => {
            let insert = "insert into sent (token_id, nar_id, sent_at, is_held) \
                 select ?1, id, ?2, 0 from nar where file_hash = ?3 \
                 on conflict (token_id, nar_id) do update set \
                     sent_at = excluded.sent_at, is_held = 0";
            for (token, file_hash) in pairs {
                transaction.execute(insert, params![token, now, file_hash])?;
            }
        }
        Dialect::Postgres => {
            let pairs: HashSet<(i64, &[u8; 32])> = pairs.collect();
            let (tokens, hashes): (Vec<Value<'_>>, Vec<Value<'_>>) = pairs
                .into_iter()
                .map(|(token, file_hash)| (Value::from(token), Value::from(file_hash)))
                .unzip();
            transaction.execute(
                "insert into sent (token_id, nar_id, sent_at, is_held) \
                 select its.token, nar.id, ?3, 0 \
                 from unnest(?1::bigint[], ?2::bytea[]) as its (token, file_hash) \
                 join nar on nar.file_hash = its.file_hash \
                 on conflict (token_id, nar_id) do update set \
                     sent_at = excluded.sent_at, is_held = 0",
                &[Value::List(&tokens), Value::List(&hashes), now.into()],
            )?;
        }
    }
    Ok(())
}
