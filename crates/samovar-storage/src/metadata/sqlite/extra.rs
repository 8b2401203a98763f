//! Statements about build logs and realisations.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::{Glob, Signature, StorePath};

use super::limits::over_limit;
use super::paths::{joined, path_row, record_use};
use super::rows::{damaged, is_shown, signed, unsigned};
use super::tokens::{self, Permit};
use super::{Sqlite, caches, check};
use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::metadata::REALISATION_COUNT_MAX;
use crate::metadata::{
    CacheId, Extra, ExtraKind, Extras, LogFile, Metadata as _, NewRealisation, OWN_LEN, Recorded,
    SizeLimit, StoredRealisation,
};

/// Length of the hash part of a path and the dash after it.
const HASH_PART_LEN: usize = 33;

impl Extras for Sqlite {
    fn record_log(
        &self,
        cache: CacheId,
        token: i64,
        log: &LogFile,
        limit: SizeLimit,
    ) -> Result<Recorded, StorageError> {
        self.write(|transaction| {
            match tokens::permit(transaction, token, self.now(), |_names| true)? {
                Permit::Invalid => return Ok(Recorded::TokenInvalid),
                Permit::Granted | Permit::OtherName(_) => {}
            }
            if !caches::restore(transaction, cache)? {
                return Ok(Recorded::CacheDeleted);
            }
            let known: Option<i64> = transaction
                .prepare_cached("select size from log where cache_id = ?1 and name = ?2")?
                .query_row(params![cache.0, log.name], |row| row.get(0))
                .optional()?;
            let added = match known {
                Some(known) => log.size.saturating_sub(unsigned(known)?),
                None => log.size + OWN_LEN,
            };
            if let Some(used) = over_limit(transaction, cache, limit, 0, added)? {
                return Ok(Recorded::OverLimit { used });
            }
            insert_log(transaction, cache, log)?;
            Ok(Recorded::Kept)
        })
    }

    fn compare_logs(
        &self,
        cache: CacheId,
        found: &[LogFile],
        before: i64,
    ) -> Result<(), StorageError> {
        let recorded = self.read(|connection| {
            let mut statement =
                connection.prepare_cached("select name from log where cache_id = ?1")?;
            let names = statement.query_map([cache.0], |row| row.get(0))?;
            Ok(names.collect::<Result<HashSet<String>, _>>()?)
        })?;
        let names: HashSet<&str> = found.iter().map(|log| &*log.name).collect();
        let new: Vec<_> = found
            .iter()
            .filter(|log| !recorded.contains(&log.name))
            .collect();
        let gone: Vec<_> = recorded
            .iter()
            .filter(|name| !names.contains(&***name))
            .collect();
        if new.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.write(|transaction| {
            for log in new {
                let is_recorded =
                    "select exists (select 1 from log where cache_id = ?1 and name = ?2)";
                let mut statement = transaction.prepare_cached(is_recorded)?;
                // An upload may have recorded it meanwhile.
                if !statement.query_row(params![cache.0, log.name], |row| row.get(0))? {
                    insert_log(transaction, cache, log)?;
                }
            }
            for name in gone {
                let delete =
                    "delete from log where cache_id = ?1 and name = ?2 and uploaded_at <= ?3";
                transaction
                    .prepare_cached(delete)?
                    .execute(params![cache.0, name, before])?;
            }
            Ok(())
        })
    }

    fn record_realisation(
        &self,
        cache: CacheId,
        token: i64,
        new: &NewRealisation,
        limit: SizeLimit,
    ) -> Result<Recorded, StorageError> {
        self.write(|transaction| record(transaction, cache, token, new, limit, self.now()))
    }

    fn realisation(
        &self,
        cache: CacheId,
        key: &str,
    ) -> Result<Option<StoredRealisation>, StorageError> {
        self.read(|connection| find(connection, cache, key))
    }

    fn realisation_keys(&self, cache: CacheId) -> Result<Vec<String>, StorageError> {
        self.read(|connection| keys(connection, cache))
    }

    fn extras_without_path(&self, before: i64) -> Result<Vec<Extra>, StorageError> {
        self.read(|connection| without_path(connection, before))
    }

    fn delete_extras<'a>(
        &self,
        extras: &'a [Extra],
        before: i64,
        remove: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Vec<&'a Extra>, StorageError> {
        self.write(|transaction| {
            let mirrored = check::mirrored_cache(transaction)?.map(|cache| cache.id);
            let mut deleted = Vec::new();
            for extra in extras {
                let is_mirrored = mirrored == Some(extra.cache);
                let (delete, name, file) = match &extra.kind {
                    ExtraKind::Log(name) if is_mirrored => {
                        (DELETE_LOG, name, Some(format!("{LOGS}{name}")))
                    }
                    ExtraKind::Log(name) => {
                        let file = format!("{}{name}", log_prefix(extra.cache.0));
                        (DELETE_LOG, name, Some(file))
                    }
                    ExtraKind::Realisation(key) => {
                        (DELETE_REALISATION, key, is_mirrored.then(|| key.clone()))
                    }
                };
                let count = transaction.prepare_cached(delete)?.execute(params![
                    extra.cache.0,
                    name,
                    before
                ])?;
                if count > 0 {
                    file.iter().try_for_each(|key| remove(key))?;
                    deleted.push(extra);
                }
            }
            Ok(deleted)
        })
    }
}

const DELETE_LOG: &str = "delete from log where cache_id = ?1 and name = ?2 and uploaded_at <= ?3 \
     and not exists (select 1 from path where cache_id = ?1 and deriver = ?2)";

const DELETE_REALISATION: &str = "delete from extra where cache_id = ?1 and key = ?2 \
     and recorded_at <= ?3 and path_id is null";

fn insert_log(
    transaction: &Transaction<'_>,
    cache: CacheId,
    log: &LogFile,
) -> Result<(), StorageError> {
    transaction
        .prepare_cached(
            "insert into log (cache_id, name, size, uploaded_at) values (?1, ?2, ?3, ?4) \
             on conflict do update set \
                 size = excluded.size, uploaded_at = excluded.uploaded_at, is_left = 0",
        )?
        .execute(params![
            cache.0,
            log.name,
            signed(log.size)?,
            log.uploaded_at
        ])?;
    Ok(())
}

fn without_path(connection: &Connection, before: i64) -> Result<Vec<Extra>, StorageError> {
    let queries = [
        "select cache_id, cache.name, log.name, log.name, size + ?2, uploaded_at, is_left \
         from log join cache on cache.id = cache_id where uploaded_at <= ?1 and not exists \
             (select 1 from path where path.cache_id = log.cache_id and deriver = log.name)",
        "select cache_id, cache.name, key, coalesce(body ->> 'outPath', ''), \
             ?2 + length(key) + length(body) + length(sigs), recorded_at, false \
         from extra join cache on cache.id = cache_id \
         where path_id is null and recorded_at <= ?1",
    ];
    let kinds = [ExtraKind::Log, ExtraKind::Realisation];
    let mut found = Vec::new();
    for (query, kind) in queries.into_iter().zip(kinds) {
        let mut statement = connection.prepare_cached(query)?;
        let mut rows = statement.query(params![before, signed(OWN_LEN)?])?;
        while let Some(row) = rows.next()? {
            let base_name: String = row.get(3)?;
            let name = base_name.get(HASH_PART_LEN..).unwrap_or_default();
            found.push(Extra {
                cache: CacheId(row.get(0)?),
                cache_name: row.get(1)?,
                kind: kind(row.get(2)?),
                name: name.strip_suffix(".drv").unwrap_or(name).to_owned(),
                size: unsigned(row.get(4)?)?,
                uploaded_at: row.get(5)?,
                is_left: row.get(6)?,
            });
        }
    }
    Ok(found)
}

fn record(
    transaction: &Transaction<'_>,
    cache: CacheId,
    token: i64,
    new: &NewRealisation,
    limit: SizeLimit,
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
    let len = |sigs: &str| OWN_LEN + (new.key.len() + new.body.len() + sigs.len()) as u64;
    let known_len = known.as_ref().map_or(0, |(_, sigs)| len(sigs));
    let added = len(&sigs).saturating_sub(known_len);
    if let Some(used) = over_limit(transaction, cache, limit, 0, added)? {
        return Ok(Recorded::OverLimit { used });
    }
    transaction
        .prepare_cached(
            "insert into extra (cache_id, key, path_id, body, sigs, recorded_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6) on conflict do update set \
                 path_id = coalesce(excluded.path_id, path_id), sigs = excluded.sigs, \
                 recorded_at = excluded.recorded_at",
        )?
        .execute(params![cache.0, new.key, output, new.body, sigs, now])?;
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

fn find(
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
fn keys(connection: &Connection, cache: CacheId) -> Result<Vec<String>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select key from extra where cache_id = ?1 and ",
        is_shown!("?1")
    ))?;
    let rows = statement.query_map([cache.0], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
