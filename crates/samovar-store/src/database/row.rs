//! Queries of `ValidPaths` rows and their references.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Transaction};
use samovar_nix::{ContentAddress, HashPart, NarHash, PathInfo, Signature, StoreDir, StorePath};

use crate::closure::lookup_each;
use crate::error::{Corruption, LookupResult, StoreError};

/// Uses the unique index on `path`. It may return the row after the prefix, so the caller must
/// check the path.
const BY_PREFIX: &str = "select id, path, hash, registrationTime, deriver, narSize, ultimate, \
    sigs, ca from ValidPaths where path >= ?1 order by path limit 1";

const NEWEST: &str = "select id, path, hash, registrationTime, deriver, narSize, ultimate, \
    sigs, ca from ValidPaths where id < ?1 order by id desc";

const REFERENCES: &str =
    "select path from Refs join ValidPaths on reference = id where referrer = ?1";

/// Reads the servable rows with the highest ids, highest first.
pub(crate) fn newest(
    connection: &Connection,
    dir: &StoreDir,
    before: Option<i64>,
    count_max: usize,
) -> Result<Vec<PathInfo>, StoreError> {
    let transaction = begin(connection)?;
    let mut statement = transaction.prepare_cached(NEWEST)?;
    let mut rows = statement.query([before.unwrap_or(i64::MAX)])?;
    let mut infos = Vec::new();
    while infos.len() < count_max
        && let Some(row) = rows.next()?
    {
        match read(&transaction, dir, row) {
            Ok(info) => infos.extend(info),
            Err(error) if error.is_about_one_path() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(infos)
}

/// Begins a read transaction. Until it is dropped, all statements see one state of the database.
pub(super) fn begin(connection: &Connection) -> Result<Transaction<'_>, StoreError> {
    Ok(connection.unchecked_transaction()?)
}

/// Returns `<store dir>/<hash part>-`, the common prefix of all paths with this hash part.
fn prefix(dir: &StoreDir, hash_part: HashPart) -> String {
    let mut prefix = String::with_capacity(dir.as_str().len() + 34);
    prefix.push_str(dir.as_str());
    prefix.push('/');
    prefix.extend(hash_part.to_text().iter().copied().map(char::from));
    prefix.push('-');
    prefix
}

/// Looks up the path with this hash part; returns `None` if it is absent.
///
/// A row whose `narSize` is unknown (NULL or 0, from stores older than that column) counts as
/// absent: its NAR cannot be announced, and clients reject a narinfo with `NarSize: 0`.
pub(crate) fn path_info(
    connection: &Connection,
    dir: &StoreDir,
    hash_part: HashPart,
) -> Result<Option<PathInfo>, StoreError> {
    let prefix = &*prefix(dir, hash_part);
    let mut statement = connection.prepare_cached(BY_PREFIX)?;
    let mut rows = statement.query([prefix])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    // Check the type: the query may have returned the next row after the prefix, whose path need
    // not be text.
    match row.get_ref(1)? {
        ValueRef::Text(path) if path.starts_with(prefix.as_bytes()) => {}
        _ => return Ok(None),
    }
    read(connection, dir, row)
}

/// Looks up many paths in one transaction.
pub(crate) fn path_infos(
    connection: &Connection,
    dir: &StoreDir,
    hash_parts: &[HashPart],
) -> Result<Vec<LookupResult>, StoreError> {
    let transaction = begin(connection)?;
    lookup_each(hash_parts, |hash_part| {
        path_info(&transaction, dir, hash_part)
    })
}

/// Reads the newest rows, only to check that they are readable.
pub(super) fn sample(
    connection: &Connection,
    dir: &StoreDir,
    count: usize,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare(NEWEST)?;
    let mut rows = statement.query([i64::MAX])?;
    for _ in 0..count {
        let Some(row) = rows.next()? else {
            break;
        };
        read(connection, dir, row)?;
    }
    Ok(())
}

/// Reads a row with the columns of [`BY_PREFIX`], and its references. Returns `None` if the NAR
/// size is unknown.
fn read(
    connection: &Connection,
    dir: &StoreDir,
    row: &Row<'_>,
) -> Result<Option<PathInfo>, StoreError> {
    let path = text(row, 1)?.ok_or(StoreError::Corrupt(Corruption::StorePath))?;
    let Some(nar_size) = nar_size(row)? else {
        return Ok(None);
    };
    let id = match row.get_ref(0)? {
        ValueRef::Integer(id) => id,
        _ => return Err(StoreError::Corrupt(Corruption::Schema)),
    };
    Ok(Some(PathInfo {
        path: store_path(dir, path)?,
        nar_hash: nar_hash(text(row, 2)?)?,
        nar_size,
        // The first statement is still active, so this one reads the same snapshot.
        references: references(connection, dir, id)?,
        deriver: text(row, 4)?.and_then(|deriver| StorePath::parse(dir, deriver).ok()),
        signatures: text(row, 7)?.map(signatures).unwrap_or_default(),
        content_address: text(row, 8)?.and_then(|text| ContentAddress::parse(text).ok()),
        registration_time: integer(row, 3)?.unwrap_or_default(),
        ultimate: integer(row, 6)?.unwrap_or_default() != 0,
        registration: Some(id),
    }))
}

fn references(
    connection: &Connection,
    dir: &StoreDir,
    id: i64,
) -> Result<Vec<StorePath>, StoreError> {
    let mut statement = connection.prepare_cached(REFERENCES)?;
    let mut rows = statement.query([id])?;
    let mut references = Vec::new();
    while let Some(row) = rows.next()? {
        let path = text(row, 0)?.ok_or(StoreError::Corrupt(Corruption::StorePath))?;
        references.push(store_path(dir, path)?);
    }
    references.sort_unstable();
    references.dedup();
    Ok(references)
}

/// Parses signatures; drops malformed ones, because Nix 2.34 and later reject a narinfo with a
/// malformed `Sig` line.
pub(crate) fn signatures(text: &str) -> Vec<Signature> {
    let mut signatures: Vec<Signature> = text
        .split_ascii_whitespace()
        .filter_map(|text| Signature::parse(text).ok())
        .collect();
    signatures.sort_unstable();
    signatures.dedup();
    signatures
}

pub(super) fn store_path(dir: &StoreDir, text: &str) -> Result<StorePath, StoreError> {
    StorePath::parse(dir, text).map_err(|_error| StoreError::Corrupt(Corruption::StorePath))
}

fn nar_hash(text: Option<&str>) -> Result<NarHash, StoreError> {
    text.and_then(|text| NarHash::parse(text).ok())
        .ok_or(StoreError::Corrupt(Corruption::NarHash))
}

fn nar_size(row: &Row<'_>) -> Result<Option<u64>, StoreError> {
    match row.get_ref(5)? {
        ValueRef::Null | ValueRef::Integer(0) => Ok(None),
        ValueRef::Integer(size) => u64::try_from(size)
            .map(Some)
            .map_err(|_error| StoreError::Corrupt(Corruption::NarSize)),
        _ => Err(StoreError::Corrupt(Corruption::NarSize)),
    }
}

fn integer(row: &Row<'_>, index: usize) -> Result<Option<i64>, StoreError> {
    match row.get_ref(index)? {
        ValueRef::Integer(number) => Ok(Some(number)),
        _ => Ok(None),
    }
}

/// Returns the text of a column; `None` if it is NULL or empty.
pub(super) fn text<'row>(
    row: &'row Row<'_>,
    index: usize,
) -> Result<Option<&'row str>, StoreError> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) => std::str::from_utf8(bytes)
            .map(|text| Some(text).filter(|text| !text.is_empty()))
            .map_err(|_error| StoreError::Corrupt(Corruption::Value)),
        _ => Err(StoreError::Corrupt(Corruption::Value)),
    }
}
