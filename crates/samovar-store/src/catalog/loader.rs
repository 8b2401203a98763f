//! Reading hash parts from the database: all of them, or the new ones.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use samovar_nix::{HashPart, StoreDir};

use super::set::Set;
use super::table::Key;
use crate::database::{Session, Token, store_error};
use crate::error::StoreError;

/// Rows that are read again to see whether this is still the database of last time.
const TAIL_COUNT: usize = 64;

/// As many of these rows must be there still. A database restored from elsewhere gives its numbers
/// out anew, and a few rows may have the same ones by chance; a small one is loaded whole.
const KNOWN_COUNT_MIN: usize = TAIL_COUNT / 2;

/// Fewer paths than this are loaded anew without a thought: it takes milliseconds.
const RELOAD_COUNT_MIN: usize = 4096;

/// Attempts to read a database in rollback mode between two commits.
const ATTEMPT_COUNT_MAX: u32 = 4;

/// The index on `path` alone answers this, without the rows themselves.
const ALL: &str = "select path from ValidPaths order by path";

const LAST: &str = "select id, path from ValidPaths order by id desc limit ?1";

const SINCE: &str = "select id, path from ValidPaths where id >= ?1 order by id";

/// Remembers what was read so far.
#[derive(Debug)]
pub(super) struct Loader {
    prefix: String,
    set: Set,
    /// How many paths the last complete load found.
    loaded_count: usize,
    /// The last rows seen, by rising id. Empty until something was loaded.
    tail: Vec<(i64, Key)>,
}

impl Loader {
    pub(super) fn new(store_dir: StoreDir) -> Self {
        let prefix = format!("{store_dir}/");
        Self {
            prefix,
            set: Set::empty(),
            loaded_count: 0,
            tail: Vec::new(),
        }
    }

    /// Reads what is new. The token is older than the set or as old, never newer.
    pub(super) fn load(
        &mut self,
        session: &Arc<Session>,
    ) -> Result<(Option<Token>, Set), StoreError> {
        let lease = session.lease()?;
        let source = session.source();
        for _ in 0..ATTEMPT_COUNT_MAX {
            let token = source.read();
            self.load_once(&lease)?;
            if !source.needs_confirmation() || source.read() == token {
                return Ok((token, self.set.clone()));
            }
        }
        Ok((None, self.set.clone()))
    }

    fn load_once(&mut self, connection: &Connection) -> Result<(), StoreError> {
        // Also ends the transaction when an error returns early.
        let transaction = connection
            .unchecked_transaction()
            .map_err(|error| store_error(&error))?;
        if !self.load_new(&transaction)? {
            self.load_all(&transaction)?;
        }
        transaction.finish().map_err(|error| store_error(&error))
    }

    /// Adds the rows since last time. `false` when everything must be loaded instead.
    fn load_new(&mut self, connection: &Connection) -> Result<bool, StoreError> {
        let Some(&(first_id, _)) = self.tail.first() else {
            return Ok(false);
        };
        let last_id = self.tail.last().map_or(first_id, |&(id, _)| id);
        let mut known = Vec::new();
        let mut new = Vec::new();
        let mut statement = connection
            .prepare_cached(SINCE)
            .map_err(|error| store_error(&error))?;
        let mut rows = statement
            .query([first_id])
            .map_err(|error| store_error(&error))?;
        while let Some(row) = rows.next().map_err(|error| store_error(&error))? {
            let Some(entry) = self.entry(row)? else {
                continue;
            };
            if entry.0 > last_id {
                new.push(entry)
            } else {
                known.push(entry)
            }
        }
        let unchanged =
            known.len() >= KNOWN_COUNT_MIN && known.iter().all(|entry| self.tail.contains(entry));
        let grown = self.set.key_count() + new.len() > 2 * self.loaded_count + RELOAD_COUNT_MIN;
        if !unchanged || grown {
            return Ok(false);
        }
        self.set = self.set.with(new.iter().map(|&(_, key)| key).collect());
        known.extend(new);
        known.drain(..known.len().saturating_sub(TAIL_COUNT));
        self.tail = known;
        Ok(true)
    }

    fn load_all(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        {
            let mut statement = connection
                .prepare_cached(ALL)
                .map_err(|error| store_error(&error))?;
            let mut rows = statement.query([]).map_err(|error| store_error(&error))?;
            while let Some(row) = rows.next().map_err(|error| store_error(&error))? {
                keys.extend(self.key(row, 0)?);
            }
        }
        let mut statement = connection
            .prepare_cached(LAST)
            .map_err(|error| store_error(&error))?;
        let mut rows = statement
            .query([i64::try_from(TAIL_COUNT).unwrap_or(i64::MAX)])
            .map_err(|error| store_error(&error))?;
        let mut tail = Vec::new();
        while let Some(row) = rows.next().map_err(|error| store_error(&error))? {
            tail.extend(self.entry(row)?);
        }
        tail.reverse();
        self.tail = tail;
        self.loaded_count = keys.len();
        self.set = Set::build(keys);
        Ok(())
    }

    fn entry(&self, row: &Row<'_>) -> Result<Option<(i64, Key)>, StoreError> {
        let id = row.get(0).map_err(|error| store_error(&error))?;
        Ok(self.key(row, 1)?.map(|key| (id, key)))
    }

    /// The hash part of a path in a row. `None` for a row without one: no request can name it, and
    /// it must not keep the others from being found.
    fn key(&self, row: &Row<'_>, column: usize) -> Result<Option<Key>, StoreError> {
        let ValueRef::Text(path) = row.get_ref(column).map_err(|error| store_error(&error))? else {
            return Ok(None);
        };
        Ok(path
            .strip_prefix(self.prefix.as_bytes())
            .and_then(|base_name| base_name.get(..32))
            .and_then(|hash_part| HashPart::parse(hash_part).ok())
            .map(|hash_part| *hash_part.as_bytes()))
    }
}
