//! Uploaded paths and their references: finds and publishes them.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, ToSql, params};
use samovar_nix::{ContentAddress, Glob, HashPart, Signature, StorePath};

use super::limits::over_limit;
use super::rows::{base_name, damaged, is_shown, nar_columns, nar_of, path_of, signed, unsigned};
use super::tokens::{self, Permit};
use super::{
    CacheId, Database, LookupResult, NewPath, OWN_LEN, Published, SIGNATURE_COUNT_MAX, StoredPath,
    caches, uses,
};
use crate::error::StorageError;

/// Returns the path with this hash part in a cache, or `None` if the cache does not have it or
/// its NAR is lost. Revives the path if it is condemned: the collector does not delete a
/// returned path for [`Rules::hold`](crate::gc::Rules::hold).
///
/// # Errors
///
/// Any [`StorageError`].
pub fn find(
    database: &Database,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<StoredPath>, StorageError> {
    let found = database.read_raw(|connection| stored_path(connection, cache, hash_part))?;
    let Some((path, true)) = found else {
        return Ok(found.map(|(path, _)| path));
    };
    database.write_raw(|transaction| {
        uses::record_path(transaction, path.id, database.now())?;
        let revived = stored_path(transaction, cache, hash_part)?;
        Ok(revived.map(|(path, _)| path))
    })
}

/// Returns the paths with these hash parts, in the same order. Each result is the same as with
/// [`find`], at less cost.
///
/// # Errors
///
/// Any [`StorageError`]. A damaged row fails only the result of its own path.
pub(crate) fn find_all(
    database: &Database,
    cache: CacheId,
    hash_parts: &[HashPart],
) -> Result<Vec<LookupResult>, StorageError> {
    let mut found = database.read_raw(|connection| stored_paths(connection, cache, hash_parts))?;
    if found.iter().any(is_condemned) {
        database.write_raw(|transaction| {
            revive_paths(transaction, cache, &mut found, database.now())
        })?;
    }
    let path = |found: Result<Option<(StoredPath, bool)>, _>| Ok(found?.map(|(path, _)| path));
    Ok(found.into_iter().map(path).collect())
}

/// Returns the same as [`find`], but does not revive a condemned path.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn peek(
    database: &Database,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<StoredPath>, StorageError> {
    let found = database.read_raw(|connection| stored_path(connection, cache, hash_part))?;
    Ok(found.map(|(path, _)| path))
}

/// Returns the hash parts of all paths, each with the cache that contains the path.
pub(crate) fn hash_parts(database: &Database) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare_cached("select cache_id, hash_part from path")?;
        let rows = statement.query_map([], |row| {
            Ok((CacheId(row.get(0)?), HashPart::from_bytes(row.get(1)?)))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    })
}

/// Returns whether the cache has a path with this hash part, even if its NAR is lost.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn exists(
    database: &Database,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<bool, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare_cached(concat!(
            "select exists (select 1 from path where cache_id = ?1 and hash_part = ?2 and ",
            is_shown!("?1"),
            ")"
        ))?;
        Ok(statement.query_row(params![cache.0, hash_part.as_bytes()], |row| row.get(0))?)
    })
}

/// Returns the hash parts of the paths of a cache that use this NAR.
pub(crate) fn of_nar(
    database: &Database,
    cache: CacheId,
    nar: i64,
) -> Result<Vec<HashPart>, StorageError> {
    database.read_raw(|connection| {
        let text = "select hash_part from path where nar_id = ?1 and cache_id = ?2";
        hash_parts_of(connection, text, &[&nar, &cache.0])
    })
}

/// Returns the hash parts of the paths of a cache that have this deriver. Reads all paths of
/// the cache.
pub(crate) fn of_deriver(
    database: &Database,
    cache: CacheId,
    deriver: &StorePath,
) -> Result<Vec<HashPart>, StorageError> {
    database.read_raw(|connection| {
        let text = "select hash_part from path where cache_id = ?1 and deriver = ?2";
        hash_parts_of(connection, text, &[&cache.0, &deriver.base_name()])
    })
}

/// Returns the hash parts of the paths outside of a cache to which its paths refer, each once.
pub(crate) fn outer_references(
    database: &Database,
    cache: CacheId,
) -> Result<Vec<HashPart>, StorageError> {
    database.read_raw(|connection| {
        let mut statement = connection.prepare(
            "select distinct base_name from outer_reference join path on path.id = referrer \
             where cache_id = ?1",
        )?;
        let mut rows = statement.query([cache.0])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(base_name(&row.get::<_, String>(0)?)?.hash_part());
        }
        Ok(found)
    })
}

/// Publishes groups of paths in one transaction, in the given order: a path may refer to an
/// earlier one. If the outcome of one path [is not a success](Published::is_success), none of
/// its group is published.
///
/// Waits at most `patience` for other writers.
///
/// # Errors
///
/// Any [`StorageError`]. Nothing is published then.
pub(crate) fn publish(
    database: &Database,
    batch: &[&[NewPath]],
    patience: Duration,
) -> Result<Vec<Vec<Published>>, StorageError> {
    database.write_within_raw(patience, |transaction| {
        let now = database.now();
        let outcomes = batch
            .iter()
            .map(|group| publish_group(transaction, group, now));
        outcomes.collect()
    })
}

fn hash_parts_of(
    connection: &Connection,
    text: &str,
    parameters: &[&dyn ToSql],
) -> Result<Vec<HashPart>, StorageError> {
    let mut statement = connection.prepare_cached(text)?;
    let mut rows = statement.query(parameters)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(HashPart::from_bytes(row.get(0)?));
    }
    Ok(found)
}

/// Publishes all paths of a group, or none.
fn publish_group(
    transaction: &Connection,
    group: &[NewPath],
    now: i64,
) -> Result<Vec<Published>, StorageError> {
    let run = |statement| transaction.prepare_cached(statement)?.execute([]);
    run("savepoint paths")?;
    let outcomes = group.iter().map(|new| publish_one(transaction, new, now));
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
    if !outcomes.iter().all(Published::is_success) {
        run("rollback to paths")?;
    }
    run("release paths")?;
    Ok(outcomes)
}

/// Publishes a path. If the outcome is not a success, the caller must roll back.
fn publish_one(
    transaction: &Connection,
    new: &NewPath,
    now: i64,
) -> Result<Published, StorageError> {
    // Check the token in the transaction that inserts the path: after a revocation has returned, no
    // upload with the token is published.
    let has_name = |names: &Glob| names.matches(new.path.name());
    let permit = match new.token {
        Some(token) => tokens::permit(transaction, token, now, has_name)?,
        None => Permit::Granted,
    };
    match permit {
        Permit::Granted => {}
        Permit::Invalid => return Ok(Published::TokenInvalid),
        Permit::OtherName(names) => return Ok(Published::OtherName(names)),
    }
    if !caches::restore(transaction, new.cache)? {
        return Ok(Published::CacheDeleted);
    }
    let nar: Option<(i64, i64)> = transaction
        .prepare_cached("select state, file_size from nar where id = ?1")?
        .query_row([new.nar_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((1 | 2, file_size)) = nar else {
        return Ok(Published::MissingNar);
    };
    let file_size = unsigned(file_size)?;
    let known = transaction
        .prepare_cached(
            "select path.id, path.name, sigs, state, nar_id <> ?3, \
             nar_hash <> (select nar_hash from nar where id = ?3) \
             from path join nar on nar.id = nar_id where cache_id = ?1 and hash_part = ?2",
        )?
        .query_row(
            params![new.cache.0, new.path.hash_part().as_bytes(), new.nar_id],
            |row| {
                Ok(Known {
                    id: row.get(0)?,
                    name: row.get(1)?,
                    sigs: row.get(2)?,
                    is_lost: row.get::<_, i64>(3)? == 3,
                    is_other_file: row.get(4)?,
                    is_other_nar: row.get(5)?,
                })
            },
        )
        .optional()?;
    if let Some(known) = &known
        && known.name != new.path.name()
    {
        let path = path_of(new.path.hash_part(), &known.name)?;
        return Ok(Published::OtherPath(path));
    }
    uses::revive_nar(transaction, new.nar_id, now)?;
    match known {
        Some(known) => publish_again(transaction, new, &known, now),
        None => insert_path(transaction, new, file_size, now),
    }
}

/// A published path with the hash part of one that a client publishes.
struct Known {
    id: i64,
    name: String,
    sigs: String,
    /// Whether its NAR is lost.
    is_lost: bool,
    /// Whether its NAR is another row than the client's NAR.
    is_other_file: bool,
    /// Whether its NAR has another hash than the client's NAR.
    is_other_nar: bool,
}

/// Publishes a path that already exists.
fn publish_again(
    transaction: &Connection,
    new: &NewPath,
    known: &Known,
    now: i64,
) -> Result<Published, StorageError> {
    let Known { id, sigs, .. } = known;
    uses::record_path(transaction, *id, now)?;
    if known.is_other_nar && !known.is_lost {
        return Ok(Published::Conflict);
    }
    if known.is_other_file && known.is_lost {
        // The path's first NAR is lost, so the new one replaces it.
        transaction
            .prepare_cached("update path set nar_id = ?2 where id = ?1")?
            .execute([*id, new.nar_id])?;
    }
    let added = joined(sigs, &new.signatures);
    let added_len = added.len().saturating_sub(sigs.len()) as u64;
    if let Some(used) = over_limit(transaction, new.cache, new.limit, 0, added_len)? {
        return Ok(Published::OverLimit { used });
    }
    if added != *sigs {
        transaction
            .prepare_cached(
                "update path set sigs = ?2, own_bytes = own_bytes + length(?2) - length(sigs) \
                 where id = ?1",
            )?
            .execute(params![id, added])?;
    }
    Ok(Published::Known)
}

/// Inserts a path that does not exist yet, and its references.
fn insert_path(
    transaction: &Connection,
    new: &NewPath,
    file_size: u64,
    now: i64,
) -> Result<Published, StorageError> {
    let is_counted: bool = transaction
        .prepare_cached("select exists (select 1 from path where nar_id = ?1 and cache_id = ?2)")?
        .query_row([new.nar_id, new.cache.0], |row| row.get(0))?;
    let file_size = if is_counted { 0 } else { file_size };
    let sigs = joined("", &new.signatures);
    let own_len = own_len(new, &sigs);
    if let Some(used) = over_limit(transaction, new.cache, new.limit, file_size, own_len)? {
        return Ok(Published::OverLimit { used });
    }
    let (mut references, mut outer, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for reference in &new.references {
        match path_row(transaction, new.cache, &reference.path)? {
            Some(id) => {
                uses::record_path(transaction, id, now)?;
                references.push(id);
            }
            None if reference.is_elsewhere => outer.push(reference.path.base_name()),
            None => missing.push(reference.path.clone()),
        }
    }
    transaction
        .prepare_cached(
            "insert into path (cache_id, hash_part, name, nar_id, self_reference, deriver, ca, \
             sigs, registered_at, used_at, token_id, own_bytes) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            new.cache.0,
            new.path.hash_part().as_bytes(),
            new.path.name(),
            new.nar_id,
            new.has_self_reference,
            new.deriver.as_ref().map(StorePath::base_name),
            new.content_address.map(|address| address.to_string()),
            sigs,
            now,
            now,
            new.token,
            signed(own_len)?
        ])?;
    let id = transaction.last_insert_rowid();
    for reference in references {
        transaction
            .prepare_cached("insert into reference values (?1, ?2)")?
            .execute([id, reference])?;
    }
    for base_name in outer {
        transaction
            .prepare_cached("insert into outer_reference values (?1, ?2)")?
            .execute(params![id, base_name])?;
    }
    Ok(match missing.is_empty() {
        true => Published::New,
        // The row stays until the rollback, so that later paths of the group do not report it as
        // missing.
        false => Published::MissingReferences(missing),
    })
}

/// Returns the row number of the path with this hash part and name, or `None` if it does not exist.
pub(super) fn path_row(
    transaction: &Connection,
    cache: CacheId,
    path: &StorePath,
) -> Result<Option<i64>, StorageError> {
    let mut statement = transaction.prepare_cached(
        "select id from path where cache_id = ?1 and hash_part = ?2 and name = ?3",
    )?;
    let hash_part = path.hash_part();
    let parameters = params![cache.0, hash_part.as_bytes(), path.name()];
    Ok(statement
        .query_row(parameters, |row| row.get(0))
        .optional()?)
}

/// Adds signatures to a column of signatures, without duplicates, up to the maximum number.
pub(super) fn joined(sigs: &str, more: &[Signature]) -> String {
    let mut texts: Vec<String> = sigs.split(' ').map(str::to_owned).collect();
    texts.retain(|text| !text.is_empty());
    for signature in more {
        let text = signature.to_string();
        if texts.len() < SIGNATURE_COUNT_MAX && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(" ")
}

/// The result of looking up a path; with it, whether it is condemned.
pub(super) type Found = Result<Option<(StoredPath, bool)>, StorageError>;

pub(super) fn is_condemned(found: &Found) -> bool {
    matches!(found, Ok(Some((_, true))))
}

/// Returns the paths with these hash parts, from one snapshot. A damaged row fails only the result
/// of its own path.
fn stored_paths(
    connection: &Connection,
    cache: CacheId,
    hash_parts: &[HashPart],
) -> Result<Vec<Found>, StorageError> {
    let transaction = connection.unchecked_transaction()?;
    let find = |hash_part: &HashPart| match stored_path(&transaction, cache, *hash_part) {
        Err(error) if !matches!(error, StorageError::Damaged(_)) => Err(error),
        found => Ok(found),
    };
    hash_parts.iter().map(find).collect()
}

/// Revives those of the found paths that are condemned. Looks each of them up again, because the
/// collector may have deleted it meanwhile.
fn revive_paths(
    transaction: &Connection,
    cache: CacheId,
    found: &mut [Found],
    now: i64,
) -> Result<(), StorageError> {
    for found in found {
        if let Ok(Some((path, true))) = found {
            uses::record_path(transaction, path.id, now)?;
            *found = stored_path(transaction, cache, path.path.hash_part());
        }
    }
    Ok(())
}

/// Returns the path with this hash part, and whether it is condemned. `None`: the cache does not
/// have it.
pub(super) fn stored_path(
    connection: &Connection,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<(StoredPath, bool)>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        ", path.id, path.name, path.self_reference, path.deriver, path.ca, path.sigs, \
         path.registered_at, path.used_at, path.condemned_at is not null \
         from path join nar on nar.id = path.nar_id \
         where path.cache_id = ?1 and path.hash_part = ?2 and nar.state <> 3 and ",
        is_shown!("?1")
    ))?;
    let mut rows = statement.query(params![cache.0, hash_part.as_bytes()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let id: i64 = row.get(7)?;
    let path = path_of(hash_part, &row.get::<_, String>(8)?)?;
    let mut references = Vec::new();
    if row.get(9)? {
        references.push(path.clone());
    }
    let mut inner = connection.prepare_cached(
        "select path.hash_part, path.name from reference join path on path.id = reference \
         where referrer = ?1",
    )?;
    let mut inner = inner.query([id])?;
    while let Some(row) = inner.next()? {
        references.push(path_of(
            HashPart::from_bytes(row.get(0)?),
            &row.get::<_, String>(1)?,
        )?);
    }
    let mut outer =
        connection.prepare_cached("select base_name from outer_reference where referrer = ?1")?;
    let mut outer = outer.query([id])?;
    while let Some(row) = outer.next()? {
        references.push(base_name(&row.get::<_, String>(0)?)?);
    }
    references.sort();
    let deriver: Option<String> = row.get(10)?;
    let ca: Option<String> = row.get(11)?;
    let sigs: String = row.get(12)?;
    let signatures = sigs.split(' ').filter(|text| !text.is_empty());
    let path = StoredPath {
        id,
        used_at: row.get(14)?,
        nar: nar_of(row)?,
        references,
        deriver: deriver.map(|deriver| base_name(&deriver)).transpose()?,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
        content_address: ca
            .map(|ca| ContentAddress::parse(&ca).map_err(|error| damaged(&error.to_string())))
            .transpose()?,
        registered_at: row.get(13)?,
        path,
    };
    Ok(Some((path, row.get(15)?)))
}

/// Returns the length of a new path without its NAR, in bytes.
fn own_len(new: &NewPath, sigs: &str) -> u64 {
    let references = new.references.iter();
    let references: usize = references.map(|new| new.path.base_name().len()).sum();
    OWN_LEN + (references + sigs.len()) as u64
}
