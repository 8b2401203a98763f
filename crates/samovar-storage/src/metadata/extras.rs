//! What a cache stores besides paths and NARs: build logs and realisations.

use std::collections::HashSet;

use samovar_nix::{Glob, Signature, StorePath};

use super::limits::over_limit;
use super::paths::{joined, path_row};
use super::rows::{damaged, is_shown, signed, unsigned};
use super::tokens::{self, Permit};
use super::{CacheId, Database, OWN_LEN, REALISATION_COUNT_MAX, SizeLimit, caches, uses};
use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::objects::Removal;
use crate::sql::{Connection, Row, Transaction, params};

/// Length of the hash part of a path and the dash after it.
const HASH_PART_LEN: usize = 33;

const DELETE_LOG: &str = "delete from log where cache_id = ?1 and name = ?2 and uploaded_at <= ?3 \
     and not exists (select 1 from path where cache_id = ?1 and deriver = ?2)";

const DELETE_REALISATION: &str = "delete from extra where cache_id = ?1 and key = ?2 \
     and recorded_at <= ?3 and path_id is null";

/// The file of a build log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Name of the file, which is the name of the derivation.
    pub name: String,
    /// Length of the file, in bytes.
    pub size: u64,
    /// Time of the upload, in seconds since 1970.
    pub uploaded_at: i64,
}

/// A build log or realisation of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// The cache.
    pub cache: CacheId,
    /// Name of the cache.
    pub cache_name: String,
    /// The kind, with what identifies it in the cache.
    pub kind: ExtraKind,
    /// Name without the hash part to which rules of retention apply: that of the derivation of a
    /// log, or of the output of a realisation.
    pub name: String,
    /// Length that counts towards the quota, in bytes.
    pub size: u64,
    /// Time of the last upload, in seconds since 1970.
    pub uploaded_at: i64,
    /// Whether it belonged to a path that was deleted.
    pub is_left: bool,
}

/// The kind of an [`Extra`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKind {
    /// A build log; contains the name of its file.
    Log(String),
    /// A realisation; contains its key.
    Realisation(String),
}

/// A realisation to record: the output of a content-addressed derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRealisation {
    /// URL of the realisation, relative to the cache.
    pub key: String,
    /// Common prefix of the keys of all outputs of the derivation.
    pub key_prefix: String,
    /// The derivation. `None`: the URL names it only by a hash.
    pub derivation: Option<StorePath>,
    /// The store path of the output.
    pub out_path: StorePath,
    /// Whether the live Nix store contains the output. Then the cache need not contain it.
    pub is_elsewhere: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// A realisation that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRealisation {
    /// Whether the output is a path of the cache. Otherwise it is a path of the live Nix store.
    pub is_of_cache: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// The outcome of recording a build log or a realisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The log or realisation was recorded now or before. Missing signatures were added.
    Kept,
    /// The cache already has another realisation of the same output, and keeps that one.
    Conflict,
    /// The output is not in the cache. Nothing was changed.
    MissingOutput,
    /// The derivation has the maximum number of realisations. Nothing was changed.
    TooMany,
    /// The log or realisation would exceed the limit of the cache. Nothing was changed.
    OverLimit {
        /// Used part of the limit, in bytes.
        used: u64,
    },
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The cache is being deleted. Nothing was changed.
    CacheDeleted,
    /// The token may push only names that match this pattern, and the name of the derivation or of
    /// the output does not match, or the name of the derivation is unknown. Nothing was changed.
    OtherName(Glob),
}

/// Records a build log of `size` bytes that was uploaded with `token`. Call it before the file
/// gets its name: then the collector, which deletes no log of the last day, leaves the file.
pub(crate) fn record_log(
    database: &Database,
    cache: CacheId,
    token: i64,
    log: &LogFile,
    limit: SizeLimit,
) -> Result<Recorded, StorageError> {
    database.write(|transaction| {
        match tokens::permit(transaction, token, database.now(), |_names| true)? {
            Permit::Invalid => return Ok(Recorded::TokenInvalid),
            Permit::Granted | Permit::OtherName(_) => {}
        }
        if !caches::restore(transaction, cache)? {
            return Ok(Recorded::CacheDeleted);
        }
        let known = "select size from log where cache_id = ?1 and name = ?2";
        let params = params![cache, &log.name];
        let known: Option<i64> = transaction.optional(known, params, |row| row.get(0))?;
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

/// Records those of the build logs in the directory of a cache that are not recorded, and
/// removes the records of logs that are not in the directory and older than `before`.
pub(crate) fn compare_logs(
    database: &Database,
    cache: CacheId,
    found: &[LogFile],
    before: i64,
) -> Result<(), StorageError> {
    let recorded: Vec<String> = database.read(|connection| {
        let query = "select name from log where cache_id = ?1";
        connection.rows(query, params![cache], |row| row.get(0))
    })?;
    let recorded: HashSet<String> = recorded.into_iter().collect();
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
    database.write(|transaction| {
        for log in &new {
            let query = "select exists (select 1 from log where cache_id = ?1 and name = ?2)";
            let params = params![cache, &log.name];
            // An upload may have recorded it meanwhile.
            if !transaction.row(query, params, |row| row.get::<bool>(0))? {
                insert_log(transaction, cache, log)?;
            }
        }
        for name in &gone {
            let delete = "delete from log where cache_id = ?1 and name = ?2 and uploaded_at <= ?3";
            transaction.execute(delete, params![cache, *name, before])?;
        }
        Ok(())
    })
}

/// Records a realisation that was uploaded with `token`. Also records a use of its output, and
/// so revives the output if it is condemned.
pub(crate) fn record_realisation(
    database: &Database,
    cache: CacheId,
    token: i64,
    new: &NewRealisation,
    limit: SizeLimit,
) -> Result<Recorded, StorageError> {
    database.write(|transaction| {
        let now = database.now();
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
            Some(path) => uses::record_path(transaction, path, now)?,
            None if new.is_elsewhere => {}
            None => return Ok(Recorded::MissingOutput),
        }
        let known = "select body, sigs from extra where cache_id = ?1 and key = ?2";
        let params = params![cache, &new.key];
        let known: Option<(String, String)> =
            transaction.optional(known, params, |row| Ok((row.get(0)?, row.get(1)?)))?;
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
        transaction.execute(
            "insert into extra (cache_id, key, path_id, body, sigs, recorded_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6) on conflict (cache_id, key) do update set \
                 path_id = coalesce(excluded.path_id, extra.path_id), sigs = excluded.sigs, \
                 recorded_at = excluded.recorded_at",
            params![cache, &new.key, output, &new.body, &sigs, now],
        )?;
        Ok(Recorded::Kept)
    })
}

/// Returns the realisation with this key, or `None` if the cache does not have it.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn realisation(
    database: &Database,
    cache: CacheId,
    key: &str,
) -> Result<Option<StoredRealisation>, StorageError> {
    database.read(|connection| {
        let query = concat!(
            "select path_id is not null, body, sigs from extra \
             where cache_id = ?1 and key = ?2 and ",
            is_shown!("?1")
        );
        connection.optional(query, params![cache, key], |row| {
            let signatures = row.get::<&str>(2)?.split_ascii_whitespace();
            Ok(StoredRealisation {
                is_of_cache: row.get(0)?,
                body: row.get(1)?,
                signatures: signatures
                    .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
                    .collect::<Result<_, _>>()?,
            })
        })
    })
}

/// Returns the keys of all realisations of a cache.
pub(crate) fn realisation_keys(
    database: &Database,
    cache: CacheId,
) -> Result<Vec<String>, StorageError> {
    database.read(|connection| {
        let query = concat!(
            "select key from extra where cache_id = ?1 and ",
            is_shown!("?1")
        );
        connection.rows(query, params![cache], |row| row.get(0))
    })
}

/// Returns the build logs and realisations that were uploaded at `before` or earlier and that
/// belong to no path of their cache.
pub(crate) fn without_path(database: &Database, before: i64) -> Result<Vec<Extra>, StorageError> {
    let own_len = signed(OWN_LEN)?;
    let logs = "select cache_id, cache.name, log.name, size + ?2, uploaded_at, is_left, log.name \
         from log join cache on cache.id = cache_id where uploaded_at <= ?1 and not exists \
             (select 1 from path where path.cache_id = log.cache_id and deriver = log.name)";
    let realisations = "select cache_id, cache.name, key, \
             ?2 + length(key) + length(body) + length(sigs), recorded_at, 0, body \
         from extra join cache on cache.id = cache_id \
         where path_id is null and recorded_at <= ?1";
    database.read(|connection| {
        let mut found = connection.rows(logs, params![before, own_len], |row| {
            extra_of(row, ExtraKind::Log, row.get(6)?)
        })?;
        found.extend(
            connection.rows(realisations, params![before, own_len], |row| {
                let output = output(row.get(6)?);
                extra_of(row, ExtraKind::Realisation, &output.unwrap_or_default())
            })?,
        );
        Ok(found)
    })
}

/// Reads a build log or realisation. `base_name`: the derivation or the output.
fn extra_of(
    row: &Row<'_>,
    kind: fn(String) -> ExtraKind,
    base_name: &str,
) -> Result<Extra, StorageError> {
    let name = base_name.get(HASH_PART_LEN..).unwrap_or_default();
    Ok(Extra {
        cache: row.get(0)?,
        cache_name: row.get(1)?,
        kind: kind(row.get(2)?),
        name: name.strip_suffix(".drv").unwrap_or(name).to_owned(),
        size: unsigned(row.get(3)?)?,
        uploaded_at: row.get(4)?,
        is_left: row.get(5)?,
    })
}

/// Returns the base name of the output of a realisation from its JSON document.
fn output(body: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(body.get("outPath")?.as_str()?.to_owned())
}

/// Deletes those of these build logs and realisations that still belong to no path and were
/// uploaded at `before` or earlier, in one transaction in which `files` receives the key of each of
/// their files. Returns the deleted ones.
///
/// # Errors
///
/// Any [`StorageError`]. No record is deleted then.
pub(crate) fn delete<'a>(
    database: &Database,
    extras: &'a [Extra],
    before: i64,
    files: &mut dyn Removal,
) -> Result<Vec<&'a Extra>, StorageError> {
    database.write(|transaction| {
        files.begin();
        let mirrored = caches::mirrored_in(transaction)?.map(|cache| cache.id);
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
            let count = transaction.execute(delete, params![extra.cache, name, before])?;
            if count > 0 {
                file.iter().try_for_each(|key| files.remove(key))?;
                deleted.push(extra);
            }
        }
        // As soon as this is committed, an upload may write one of the files again.
        files.finish()?;
        Ok(deleted)
    })
}

fn insert_log(
    transaction: &Transaction<'_>,
    cache: CacheId,
    log: &LogFile,
) -> Result<(), StorageError> {
    transaction.execute(
        "insert into log (cache_id, name, size, uploaded_at) values (?1, ?2, ?3, ?4) \
         on conflict (cache_id, name) do update set \
             size = excluded.size, uploaded_at = excluded.uploaded_at, is_left = 0",
        params![cache, &log.name, signed(log.size)?, log.uploaded_at],
    )?;
    Ok(())
}

/// Counts the realisations whose keys start with a prefix.
fn count(connection: &Connection<'_>, cache: CacheId, prefix: &str) -> Result<u64, StorageError> {
    let query = "select count(*) from extra where cache_id = ?1 and key >= ?2 and key < ?3";
    let end = format!("{prefix}\u{10ffff}");
    unsigned(connection.row(query, params![cache, prefix, &end], |row| row.get(0))?)
}
