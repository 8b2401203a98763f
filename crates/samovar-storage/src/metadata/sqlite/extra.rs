//! Statements about realisations.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::{Glob, Signature, StorePath};

use super::caches;
use super::paths::{joined, path_row, record_use};
use super::rows::{damaged, is_shown, unsigned};
use super::tokens::{self, Permit};
use crate::error::StorageError;
use crate::metadata::{CacheId, NewRealisation, Recorded, StoredRealisation};
use crate::publish::REALISATION_COUNT_MAX;

pub(super) fn record(
    transaction: &Transaction<'_>,
    cache: CacheId,
    token: i64,
    new: &NewRealisation,
    now: i64,
) -> Result<Recorded, StorageError> {
    let has_names = |names: &Glob| {
        let derivation = new.derivation.as_ref().map(StorePath::name);
        let derivation = derivation.and_then(|name| name.strip_suffix(".drv"));
        derivation.is_some_and(|name| names.matches(name)) && names.matches(new.out_path.name())
    };
    match tokens::permit(transaction, token, now, has_names)? {
        Permit::Granted => {}
        Permit::Invalid => return Ok(Recorded::TokenInvalid),
        Permit::OtherName(names) => return Ok(Recorded::OtherName(names)),
    }
    if !caches::restore(transaction, cache)? {
        return Ok(Recorded::CacheDeleted);
    }
    let output = path_row(transaction, cache, &new.out_path)?;
    match output {
        Some(path) => record_use(transaction, path, now)?,
        None if new.is_elsewhere => {}
        None => return Ok(Recorded::MissingOutput),
    }
    let known: Option<(String, String)> = transaction
        .prepare_cached("select body, sigs from extra where cache_id = ?1 and key = ?2")?
        .query_row(params![cache.0, new.key], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let sigs = match &known {
        Some((body, _)) if *body != new.body => return Ok(Recorded::Conflict),
        Some((_, sigs)) => joined(sigs, &new.signatures),
        None if count(transaction, cache, &new.key_prefix)? >= REALISATION_COUNT_MAX => {
            return Ok(Recorded::TooMany);
        }
        None => joined("", &new.signatures),
    };
    transaction
        .prepare_cached(
            "insert into extra (cache_id, key, path_id, body, sigs) values (?1, ?2, ?3, ?4, ?5) \
             on conflict do update set \
                 path_id = coalesce(excluded.path_id, path_id), sigs = excluded.sigs",
        )?
        .execute(params![cache.0, new.key, output, new.body, sigs])?;
    Ok(Recorded::Kept)
}

/// Counts the realisations whose keys start with a prefix.
fn count(connection: &Connection, cache: CacheId, prefix: &str) -> Result<u64, StorageError> {
    let mut statement = connection.prepare_cached(
        "select count(*) from extra \
         where cache_id = ?1 and key >= ?2 and key < ?2 || char(0x10ffff)",
    )?;
    unsigned(statement.query_row(params![cache.0, prefix], |row| row.get(0))?)
}

pub(super) fn find(
    connection: &Connection,
    cache: CacheId,
    key: &str,
) -> Result<Option<StoredRealisation>, StorageError> {
    let row: Option<(bool, String, String)> = connection
        .prepare_cached(concat!(
            "select path_id is not null, body, sigs from extra \
             where cache_id = ?1 and key = ?2 and ",
            is_shown!("?1")
        ))?
        .query_row(params![cache.0, key], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((is_of_cache, body, sigs)) = row else {
        return Ok(None);
    };
    let signatures = sigs.split_ascii_whitespace();
    Ok(Some(StoredRealisation {
        is_of_cache,
        body,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
    }))
}

/// Returns the keys of all realisations of a cache.
pub(super) fn keys(connection: &Connection, cache: CacheId) -> Result<Vec<String>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select key from extra where cache_id = ?1 and ",
        is_shown!("?1")
    ))?;
    let rows = statement.query_map([cache.0], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
