//! Uploaded paths and their references: finds and publishes them.

use std::ops::ControlFlow;
use std::time::Duration;

use samovar_nix::{ContentAddress, Glob, HashPart, Signature, StorePath};

use super::limits::over_limit;
use super::rows::{base_name, damaged, is_shown, nar_columns, nar_of, path_of, signed, unsigned};
use super::tokens::{self, Permit};
use super::{
    CacheId, Database, LookupResult, NewPath, OWN_LEN, Published, SIGNATURE_COUNT_MAX, StoredPath,
    caches, uses,
};
use crate::error::StorageError;
use crate::sql::{Change, Connection, Row, Transaction, Value, params};

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
    let found = database.read(|connection| stored_path(connection, cache, hash_part))?;
    let Some((path, true)) = found else {
        return Ok(found.map(|(path, _)| path));
    };
    database.write(|transaction| {
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
    let mut found = database.read(|connection| stored_paths(connection, cache, hash_parts))?;
    if found.iter().any(is_condemned) {
        database
            .write(|transaction| revive_paths(transaction, cache, &mut found, database.now()))?;
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
    let found = database.read(|connection| stored_path(connection, cache, hash_part))?;
    Ok(found.map(|(path, _)| path))
}

/// Returns the hash parts of all paths, each with the cache that contains the path.
pub(crate) fn hash_parts(database: &Database) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    database.read(|connection| {
        let mut found = Vec::new();
        connection.each("select cache_id, hash_part from path", &[], |row| {
            found.push((row.get(0)?, HashPart::from_bytes(row.get(1)?)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
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
    database.read(|connection| {
        let query = concat!(
            "select exists (select 1 from path where cache_id = ?1 and hash_part = ?2 and ",
            is_shown!("?1"),
            ")"
        );
        connection.row(query, params![cache, hash_part.as_bytes()], |row| {
            row.get(0)
        })
    })
}

/// Returns the hash parts of the paths of a cache that use this NAR.
pub(crate) fn of_nar(
    database: &Database,
    cache: CacheId,
    nar: i64,
) -> Result<Vec<HashPart>, StorageError> {
    database.read(|connection| {
        let text = "select hash_part from path where nar_id = ?1 and cache_id = ?2";
        hash_parts_of(connection, text, params![nar, cache])
    })
}

/// Returns the hash parts of the paths of a cache that have this deriver. Reads all paths of
/// the cache.
pub(crate) fn of_deriver(
    database: &Database,
    cache: CacheId,
    deriver: &StorePath,
) -> Result<Vec<HashPart>, StorageError> {
    database.read(|connection| {
        let text = "select hash_part from path where cache_id = ?1 and deriver = ?2";
        hash_parts_of(connection, text, params![cache, deriver.base_name()])
    })
}

/// Returns the hash parts of the paths outside of a cache to which its paths refer, each once.
pub(crate) fn outer_references(
    database: &Database,
    cache: CacheId,
) -> Result<Vec<HashPart>, StorageError> {
    database.read(|connection| {
        let query = "select distinct base_name from outer_reference \
                     join path on path.id = referrer where cache_id = ?1";
        connection.rows(query, params![cache], |row| {
            Ok(base_name(row.get(0)?)?.hash_part())
        })
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
    database.write_within(patience, |transaction| {
        let now = database.now();
        let outcomes = batch
            .iter()
            .map(|group| publish_group(transaction, group, now));
        outcomes.collect()
    })
}

fn hash_parts_of(
    connection: &Connection<'_>,
    query: &str,
    params: &[Value<'_>],
) -> Result<Vec<HashPart>, StorageError> {
    connection.rows(query, params, |row| Ok(HashPart::from_bytes(row.get(0)?)))
}

/// Publishes all paths of a group, or none.
fn publish_group(
    transaction: &Transaction<'_>,
    group: &[NewPath],
    now: i64,
) -> Result<Vec<Published>, StorageError> {
    transaction.attempt(|| {
        let outcomes = group.iter().map(|new| publish_one(transaction, new, now));
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        let succeeds = outcomes.iter().all(Published::is_success);
        Ok((outcomes, succeeds))
    })
}

/// Publishes a path. If the outcome is not a success, the caller must roll back.
fn publish_one(
    transaction: &Transaction<'_>,
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
    let nar = "select state, file_size from nar where id = ?1";
    let nar: Option<(i64, i64)> = transaction.optional(nar, params![new.nar_id], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let Some((1 | 2, file_size)) = nar else {
        return Ok(Published::MissingNar);
    };
    let file_size = unsigned(file_size)?;
    let known = transaction.optional(
        "select path.id, path.name, sigs, state, nar_id <> ?3, \
         nar_hash <> (select nar_hash from nar where id = ?3) \
         from path join nar on nar.id = nar_id where cache_id = ?1 and hash_part = ?2",
        params![new.cache, new.path.hash_part().as_bytes(), new.nar_id],
        |row| {
            Ok(Known {
                id: row.get(0)?,
                name: row.get(1)?,
                sigs: row.get(2)?,
                is_lost: row.get::<i64>(3)? == 3,
                is_other_file: row.get(4)?,
                is_other_nar: row.get(5)?,
            })
        },
    )?;
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
    transaction: &Transaction<'_>,
    new: &NewPath,
    known: &Known,
    now: i64,
) -> Result<Published, StorageError> {
    let Known { id, sigs, .. } = known;
    let change = Change::PathChanged(new.cache, new.path.hash_part());
    uses::record_path(transaction, *id, now)?;
    if known.is_other_nar && !known.is_lost {
        return Ok(Published::Conflict);
    }
    if known.is_other_file && known.is_lost {
        // The path's first NAR is lost, so the new one replaces it.
        let update = "update path set nar_id = ?2 where id = ?1";
        transaction.execute(update, params![*id, new.nar_id])?;
        transaction.note(change);
    }
    let added = joined(sigs, &new.signatures);
    let added_len = added.len().saturating_sub(sigs.len()) as u64;
    if let Some(used) = over_limit(transaction, new.cache, new.limit, 0, added_len)? {
        return Ok(Published::OverLimit { used });
    }
    if added != *sigs {
        transaction.execute(
            "update path set sigs = ?2, own_bytes = own_bytes + length(?2) - length(sigs) \
             where id = ?1",
            params![*id, &added],
        )?;
        transaction.note(change);
    }
    Ok(Published::Known)
}

/// Inserts a path that does not exist yet, and its references.
fn insert_path(
    transaction: &Transaction<'_>,
    new: &NewPath,
    file_size: u64,
    now: i64,
) -> Result<Published, StorageError> {
    let is_counted: bool = transaction.row(
        "select exists (select 1 from path where nar_id = ?1 and cache_id = ?2)",
        params![new.nar_id, new.cache],
        |row| row.get(0),
    )?;
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
    let address = new.content_address.map(|address| address.to_string());
    let id: i64 = transaction.row(
        "insert into path (cache_id, hash_part, name, nar_id, self_reference, deriver, ca, \
         sigs, registered_at, used_at, token_id, own_bytes) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?11) returning id",
        params![
            new.cache,
            new.path.hash_part().as_bytes(),
            new.path.name(),
            new.nar_id,
            new.has_self_reference,
            new.deriver.as_ref().map(StorePath::base_name),
            address.as_ref(),
            &sigs,
            now,
            new.token,
            signed(own_len)?
        ],
        |row| row.get(0),
    )?;
    for reference in references {
        let insert = "insert into reference (referrer, reference) values (?1, ?2)";
        transaction.execute(insert, params![id, reference])?;
    }
    for base_name in outer {
        let insert = "insert into outer_reference (referrer, base_name) values (?1, ?2)";
        transaction.execute(insert, params![id, base_name])?;
    }
    transaction.note(Change::PathAdded(new.cache, new.path.hash_part()));
    Ok(match missing.is_empty() {
        true => Published::New,
        // The row stays until the rollback, so that later paths of the group do not report it as
        // missing.
        false => Published::MissingReferences(missing),
    })
}

/// Returns the row number of the path with this hash part and name, or `None` if it does not exist.
pub(super) fn path_row(
    transaction: &Transaction<'_>,
    cache: CacheId,
    path: &StorePath,
) -> Result<Option<i64>, StorageError> {
    let query = "select id from path where cache_id = ?1 and hash_part = ?2 and name = ?3";
    let hash_part = path.hash_part();
    let params = params![cache, hash_part.as_bytes(), path.name()];
    transaction.optional(query, params, |row| row.get(0))
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
    connection: &Connection<'_>,
    cache: CacheId,
    hash_parts: &[HashPart],
) -> Result<Vec<Found>, StorageError> {
    connection.snapshot(|connection| {
        let find = |hash_part: &HashPart| match stored_path(connection, cache, *hash_part) {
            Err(error) if !matches!(error, StorageError::Damaged(_)) => Err(error),
            found => Ok(found),
        };
        hash_parts.iter().map(find).collect()
    })
}

/// Revives those of the found paths that are condemned. Looks each of them up again, because the
/// collector may have deleted it meanwhile.
fn revive_paths(
    transaction: &Transaction<'_>,
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
    connection: &Connection<'_>,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<(StoredPath, bool)>, StorageError> {
    let query = concat!(
        "select ",
        nar_columns!(),
        ", path.id, path.name, path.self_reference, path.deriver, path.ca, path.sigs, \
         path.registered_at, path.used_at, path.condemned_at is not null \
         from path join nar on nar.id = path.nar_id \
         where path.cache_id = ?1 and path.hash_part = ?2 and nar.state <> 3 and ",
        is_shown!("?1")
    );
    let found = connection.optional(query, params![cache, hash_part.as_bytes()], |row| {
        Ok((
            path_without_references(row, hash_part)?,
            row.get(9)?,
            row.get(15)?,
        ))
    })?;
    let Some((mut path, has_self_reference, is_condemned)) = found else {
        return Ok(None);
    };
    let inner = "select path.hash_part, path.name from reference \
                 join path on path.id = reference where referrer = ?1";
    path.references = connection.rows(inner, params![path.id], |row| {
        path_of(HashPart::from_bytes(row.get(0)?), row.get(1)?)
    })?;
    let outer = "select base_name from outer_reference where referrer = ?1";
    let outer = connection.rows(outer, params![path.id], |row| base_name(row.get(0)?))?;
    path.references.extend(outer);
    if has_self_reference {
        path.references.push(path.path.clone());
    }
    path.references.sort();
    Ok(Some((path, is_condemned)))
}

/// Reads all of a path but its references: see [`stored_path`].
fn path_without_references(row: &Row<'_>, hash_part: HashPart) -> Result<StoredPath, StorageError> {
    let deriver: Option<&str> = row.get(10)?;
    let ca: Option<&str> = row.get(11)?;
    let signatures = row.get::<&str>(12)?.split(' ');
    let signatures = signatures.filter(|text| !text.is_empty());
    Ok(StoredPath {
        id: row.get(7)?,
        used_at: row.get(14)?,
        path: path_of(hash_part, row.get(8)?)?,
        nar: nar_of(row)?,
        references: Vec::new(),
        deriver: deriver.map(base_name).transpose()?,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
        content_address: ca
            .map(|ca| ContentAddress::parse(ca).map_err(|error| damaged(&error.to_string())))
            .transpose()?,
        registered_at: row.get(13)?,
    })
}

/// Returns the length of a new path without its NAR, in bytes.
fn own_len(new: &NewPath, sigs: &str) -> u64 {
    let references = new.references.iter();
    let references: usize = references.map(|new| new.path.base_name().len()).sum();
    OWN_LEN + (references + sigs.len()) as u64
}
