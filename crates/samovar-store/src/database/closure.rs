//! The closure of a path, by the numbers of rows.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};
use samovar_nix::{HashPart, StoreDir};

use super::Database;
use super::connection::store_error;
use super::row::{begin, path_info, prefix, store_path};
use crate::closure::{Closure, Member, in_order};
use crate::error::{Corruption, StoreError};

/// The primary key answers this, without the rows themselves, and in an order that stays.
const REFERENCES: &str = "select reference from Refs where referrer = ?1 order by reference";

const PATH: &str = "select path from ValidPaths where id = ?1";

impl Database {
    /// The closure of the path with this hash part, at one moment.
    pub(crate) fn closure(
        &self,
        dir: &StoreDir,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        let prefix = prefix(dir, hash_part);
        self.ask(|connection| {
            let transaction = begin(connection)?;
            let Some(start) = path_info(&transaction, dir, &prefix)? else {
                return Ok(None);
            };
            // A row of the database always has a number.
            let Some(start) = start.registration else {
                return Err(StoreError::Corrupt(Corruption::Schema));
            };
            let Some(ids) = in_order(start, count_max, |id| references(&transaction, id))? else {
                return Ok(Some(Closure::TooLarge));
            };
            ids.into_iter()
                .map(|id| {
                    Ok(Member {
                        hash_part: hash_part_of(&transaction, dir, id)?,
                        registration: Some(id),
                    })
                })
                .collect::<Result<_, _>>()
                .map(|members| Some(Closure::Members(members)))
        })
    }
}

fn references(connection: &Connection, id: i64) -> Result<Vec<i64>, StoreError> {
    let mut statement = connection
        .prepare_cached(REFERENCES)
        .map_err(|error| store_error(&error))?;
    let ids = statement
        .query_map([id], |row| row.get(0))
        .and_then(Iterator::collect);
    ids.map_err(|error| store_error(&error))
}

fn hash_part_of(connection: &Connection, dir: &StoreDir, id: i64) -> Result<HashPart, StoreError> {
    let mut statement = connection
        .prepare_cached(PATH)
        .map_err(|error| store_error(&error))?;
    let found = statement
        .query_row([id], |row| match row.get_ref(0)? {
            ValueRef::Text(path) => Ok(std::str::from_utf8(path)
                .ok()
                .and_then(|path| store_path(dir, path).ok())),
            _ => Ok(None),
        })
        .optional()
        .map_err(|error| store_error(&error))?;
    // SQLite keeps a reference to a row that is not there from being committed.
    let path = found
        .flatten()
        .ok_or(StoreError::Corrupt(Corruption::StorePath))?;
    Ok(path.hash_part())
}
