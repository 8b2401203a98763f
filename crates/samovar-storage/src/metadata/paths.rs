//! Uploaded paths and their references: finds them.

use std::collections::HashMap;
use std::ops::ControlFlow;

use samovar_nix::{ContentAddress, HashPart, Signature, StorePath};

use super::rows::{base_name, damaged, is_shown, nar_columns, nar_of, path_of};
use super::{CacheId, Database, LookupResult, SIGNATURE_COUNT_MAX, StoredPath, uses};
use crate::error::StorageError;
use crate::sql::{Connection, Row, Transaction, Value, params};

/// Columns of a path without its references to other paths, in the order in which [`path_of_row`]
/// reads them.
macro_rules! path_columns {
    () => {
        concat!(
            nar_columns!(),
            ", path.id, path.name, path.self_reference, path.deriver, path.ca, path.sigs, \
             path.registered_at, path.used_at, path.condemned_at is not null, path.hash_part"
        )
    };
}

/// Condition for the paths of a cache that clients may see. `?1`: the cache.
macro_rules! is_visible {
    () => {
        concat!(
            "path.cache_id = ?1 and nar.state <> 3 and ",
            is_shown!("?1")
        )
    };
}

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

fn hash_parts_of(
    connection: &Connection<'_>,
    query: &str,
    params: &[Value<'_>],
) -> Result<Vec<HashPart>, StorageError> {
    connection.rows(query, params, |row| Ok(HashPart::from_bytes(row.get(0)?)))
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

/// The paths that exist, each with whether it is condemned, or with its damage.
type FoundPaths = HashMap<HashPart, Result<(StoredPath, bool), StorageError>>;

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
    let mut found = connection.snapshot(|connection| {
        let mut found = rows(connection, cache, hash_parts)?;
        read_references(connection, &mut found)?;
        Ok(found)
    })?;
    let mut first = HashMap::with_capacity(hash_parts.len());
    let mut results: Vec<Found> = Vec::with_capacity(hash_parts.len());
    for (index, hash_part) in hash_parts.iter().enumerate() {
        let first = *first.entry(*hash_part).or_insert(index);
        results.push(match results.get(first) {
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err(error)) => Err(error.copy()),
            None => found.remove(hash_part).transpose(),
        });
    }
    Ok(results)
}

/// Reads all of these paths but their references to other paths: see [`stored_path`].
fn rows(
    connection: &Connection<'_>,
    cache: CacheId,
    hash_parts: &[HashPart],
) -> Result<FoundPaths, StorageError> {
    let query = concat!(
        "select ",
        path_columns!(),
        " from path join nar on nar.id = path.nar_id where ",
        is_visible!(),
        " and path.hash_part"
    );
    let keys: Vec<Value<'_>> = hash_parts
        .iter()
        .map(|part| part.as_bytes().into())
        .collect();
    let mut found = HashMap::with_capacity(keys.len());
    connection.each_of(query, params![cache], &keys, |row| {
        let hash_part = HashPart::from_bytes(row.get(16)?);
        let path = damage_of(path_of_row(row, hash_part))?;
        found.insert(hash_part, path);
        Ok(())
    })?;
    Ok(found)
}

/// Adds the references to other paths. A damaged reference damages its referrer.
fn read_references(
    connection: &Connection<'_>,
    found: &mut FoundPaths,
) -> Result<(), StorageError> {
    let by_id = found
        .values()
        .flatten()
        .map(|(path, _)| (path.id, path.path.hash_part()));
    let by_id: HashMap<i64, HashPart> = by_id.collect();
    let ids: Vec<Value<'_>> = by_id.keys().copied().map(Value::from).collect();
    let mut add = |row: &Row<'_>, reference: Result<StorePath, StorageError>| {
        let referrer: i64 = row.get(0)?;
        let referrer = by_id
            .get(&referrer)
            .and_then(|hash_part| found.get_mut(hash_part));
        match (referrer, damage_of(reference)?) {
            (Some(Ok((path, _))), Ok(reference)) => path.references.push(reference),
            (Some(referrer), Err(error)) => *referrer = Err(error),
            _ => {}
        }
        Ok(())
    };
    let inner = "select referrer, path.hash_part, path.name from reference \
                 join path on path.id = reference where referrer";
    connection.each_of(inner, &[], &ids, |row| {
        add(row, path_of(HashPart::from_bytes(row.get(1)?), row.get(2)?))
    })?;
    let outer = "select referrer, base_name from outer_reference where referrer";
    connection.each_of(outer, &[], &ids, |row| add(row, base_name(row.get(1)?)))?;
    for (path, _) in found.values_mut().flatten() {
        path.references.sort();
    }
    Ok(())
}

/// Returns the result, whose error concerns one path only, or the error if it concerns all.
fn damage_of<T>(result: Result<T, StorageError>) -> Result<Result<T, StorageError>, StorageError> {
    match result {
        Err(error) if !matches!(error, StorageError::Damaged(_)) => Err(error),
        result => Ok(result),
    }
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
/// have it. Runs one statement, because each one may be a round trip: it returns a row for each
/// reference to another path of the cache, or one if there is none, and a row for each other
/// reference, which has no columns of the path.
pub(super) fn stored_path(
    connection: &Connection<'_>,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<(StoredPath, bool)>, StorageError> {
    let query = concat!(
        "select ",
        path_columns!(),
        ", other.hash_part, other.name from path join nar on nar.id = path.nar_id \
         left join reference on referrer = path.id left join path as other on other.id = reference \
         where ",
        is_visible!(),
        " and path.hash_part = ?2 union all select null, null, null, null, null, null, null, null, \
         null, null, null, null, null, null, null, null, null, null, base_name \
         from path join outer_reference on referrer = path.id \
         where path.cache_id = ?1 and path.hash_part = ?2"
    );
    let (mut found, mut references) = (None, Vec::new());
    connection.rows(query, params![cache, hash_part.as_bytes()], |row| {
        if row.get::<Option<i64>>(0)?.is_none() {
            references.push(base_name(row.get(18)?)?);
            return Ok(());
        }
        if found.is_none() {
            found = Some(path_of_row(row, hash_part)?);
        }
        if let Some(hash_part) = row.get::<Option<[u8; 20]>>(17)? {
            references.push(path_of(HashPart::from_bytes(hash_part), row.get(18)?)?);
        }
        Ok(())
    })?;
    let Some((mut path, is_condemned)) = found else {
        return Ok(None);
    };
    path.references.extend(references);
    path.references.sort();
    Ok(Some((path, is_condemned)))
}

/// Reads a path without its references to other paths, and whether it is condemned.
fn path_of_row(row: &Row<'_>, hash_part: HashPart) -> Result<(StoredPath, bool), StorageError> {
    let deriver: Option<&str> = row.get(10)?;
    let ca: Option<&str> = row.get(11)?;
    let signatures = row.get::<&str>(12)?.split(' ');
    let signatures = signatures.filter(|text| !text.is_empty());
    let path = path_of(hash_part, row.get(8)?)?;
    let path = StoredPath {
        id: row.get(7)?,
        used_at: row.get(14)?,
        nar: nar_of(row)?,
        references: match row.get(9)? {
            true => vec![path.clone()],
            false => Vec::new(),
        },
        deriver: deriver.map(base_name).transpose()?,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
        content_address: ca
            .map(|ca| ContentAddress::parse(ca).map_err(|error| damaged(&error.to_string())))
            .transpose()?,
        registered_at: row.get(13)?,
        path,
    };
    Ok((path, row.get(15)?))
}
