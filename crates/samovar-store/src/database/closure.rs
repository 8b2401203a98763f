//! Finds the closure of a path by row ids.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};
use samovar_nix::{HashPart, StoreDir};

use super::row::{begin, path_info, store_path};
use crate::closure::{Closure, Member, in_order};
use crate::error::{Corruption, StoreError};

/// SQLite answers it from the primary key alone, in a stable order.
const REFERENCES: &str = "select reference from Refs where referrer = ?1 order by reference";

const PATH: &str = "select path, coalesce(narSize, 0) <> 0 from ValidPaths where id = ?1";

/// Finds the closure of the path with this hash part, in one transaction; returns `None` if the
/// path is absent.
pub(crate) fn closure(
    connection: &Connection,
    dir: &StoreDir,
    hash_part: HashPart,
    count_max: usize,
) -> Result<Option<Closure>, StoreError> {
    let transaction = begin(connection)?;
    let Some(start) = path_info(&transaction, dir, hash_part)? else {
        return Ok(None);
    };
    // A row of the database always has an id.
    let Some(start) = start.registration else {
        return Err(StoreError::Corrupt(Corruption::Schema));
    };
    let Some(ids) = in_order(start, count_max, |id| references(&transaction, id))? else {
        return Ok(Some(Closure::TooLarge));
    };
    let mut members = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(hash_part) = servable(&transaction, dir, id)? else {
            return Ok(Some(Closure::Incomplete));
        };
        members.push(Member {
            hash_part,
            registration: Some(id),
        });
    }
    Ok(Some(Closure::Members(members)))
}

fn references(connection: &Connection, id: i64) -> Result<Vec<i64>, StoreError> {
    let mut statement = connection.prepare_cached(REFERENCES)?;
    let ids = statement
        .query_map([id], |row| row.get(0))
        .and_then(Iterator::collect);
    Ok(ids?)
}

/// Returns the hash part of a row, or `None` if its NAR size is unknown.
fn servable(
    connection: &Connection,
    dir: &StoreDir,
    id: i64,
) -> Result<Option<HashPart>, StoreError> {
    let mut statement = connection.prepare_cached(PATH)?;
    let found = statement
        .query_row([id], |row| {
            let path = match row.get_ref(0)? {
                ValueRef::Text(path) => std::str::from_utf8(path).ok(),
                _ => None,
            };
            let path = path.and_then(|path| store_path(dir, path).ok());
            Ok(path.map(|path| (path.hash_part(), row.get::<_, bool>(1))))
        })
        .optional()?;
    // A foreign key constraint guarantees that a referenced row exists.
    let (hash_part, has_size) = found
        .flatten()
        .ok_or(StoreError::Corrupt(Corruption::StorePath))?;
    Ok(has_size?.then_some(hash_part))
}
