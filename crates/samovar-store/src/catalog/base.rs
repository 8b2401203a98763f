//! What was read of the database so far, and what is new in it.

use std::sync::Arc;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row};
use samovar_nix::{HashPart, StoreDir};

use super::set::Set;
use super::table::Key;
use crate::database::{Database, Session, store_error};
use crate::error::StoreError;

/// Rows that are read again to see whether this is still the database of last time: the newest that
/// were there.
const TAIL_COUNT: usize = 128;

/// As many of these rows must be there still. A database restored from elsewhere gives its numbers
/// out anew, and a few rows may have the same ones by chance.
const KNOWN_COUNT_MIN: usize = 32;

/// So many rows are read while somebody waits: it takes milliseconds.
const SMALL_COUNT: usize = 4096;

/// Rows that one transaction of a large load reads. In rollback mode writers wait for it: 50 ms.
const CHUNK_COUNT: usize = 50_000;

/// How often a large load waits for another process's lock before it gives up: ten seconds.
const BUSY_COUNT_MAX: u32 = 20;

/// The index on `path` alone answers this, without the rows themselves.
const AFTER: &str = "select path from ValidPaths where path > ?1 order by path limit ?2";

const LAST: &str = "select id, path from ValidPaths order by id desc limit ?1";

const SINCE: &str = "select id, path from ValidPaths where id >= ?1 order by id";

/// A set that holds every path of the database as of the last time it was brought up to date, and
/// perhaps some that were deleted.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) set: Set,
    origin: Origin,
    /// How many paths there were when everything was read.
    loaded_count: usize,
    /// The highest number of a row that was seen.
    last_id: i64,
    /// The newest rows at that time, by rising number.
    tail: Vec<(i64, Key)>,
}

/// What all states of a database have in common that commits alone led to, one from the other.
/// A backup that takes its place has rows that were deleted since, with the numbers they had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    lineage: u64,
    /// SQLite raises it when it writes a backup over the database by itself.
    schema_version: i64,
}

impl Origin {
    /// The origin of what `connection` reads next.
    pub(super) fn of(
        database: &Database,
        session: &Session,
        connection: &Connection,
    ) -> Result<Self, StoreError> {
        // First: in a transaction this takes the lock, and in rollback mode nobody commits then.
        let schema_version = connection
            .query_row("pragma schema_version", [], |row| row.get(0))
            .map_err(|error| store_error(&error))?;
        Ok(Self {
            lineage: database.lineage(session)?,
            schema_version,
        })
    }
}

/// What [`Base::advance`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// The set holds all paths there are.
    Done,
    /// Some new rows were added to the set, and there are more.
    More,
    /// This is another database, as far as one can tell: everything must be read.
    Foreign,
}

/// Reads hash parts out of rows.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    prefix: String,
}

impl Reader {
    pub(super) fn new(store_dir: &StoreDir) -> Self {
        Self {
            prefix: format!("{store_dir}/"),
        }
    }

    /// Everything, if it is little; in the transaction that `connection` is in.
    pub(super) fn read_small(
        &self,
        origin: Origin,
        connection: &Connection,
    ) -> Result<Option<Base>, StoreError> {
        let (tail, last_id) = self.tail(connection)?;
        let mut keys = Vec::new();
        let rest = self.read_after(connection, &first(), SMALL_COUNT, &mut keys)?;
        Ok(rest
            .is_none()
            .then(|| Base::new(origin, keys, tail, last_id)))
    }

    /// Everything, with a transaction for each chunk. Nothing is lost between the chunks: what is
    /// added meanwhile has numbers behind `last_id`, and [`Base::advance`] reads it afterwards.
    ///
    /// `None` when `is_cancelled` says so, or this is another database all at once.
    pub(super) fn read_large(
        &self,
        database: &Database,
        session: &Arc<Session>,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<Base>, StoreError> {
        let lease = session.lease()?;
        let origin = patiently(|| Origin::of(database, session, &lease))?;
        // Before the paths, so that rows added since are new.
        let (tail, last_id) = patiently(|| self.tail(&lease))?;
        let mut keys = Vec::new();
        let mut place = Some(first());
        while let Some(after) = place {
            // A connection to a file that was written over stands in the way of everybody else's.
            let now = patiently(|| Origin::of(database, session, &lease))?;
            if is_cancelled() || now != origin {
                return Ok(None);
            }
            let count = keys.len();
            place = patiently(|| {
                keys.truncate(count);
                self.read_after(&lease, &after, CHUNK_COUNT, &mut keys)
            })?;
        }
        Ok(Some(Base::new(origin, keys, tail, last_id)))
    }

    /// Reads up to `count_max` paths behind `after`. Returns the last one if there may be more.
    fn read_after(
        &self,
        connection: &Connection,
        after: &Value,
        count_max: usize,
        keys: &mut Vec<Key>,
    ) -> Result<Option<Value>, StoreError> {
        let mut statement = connection
            .prepare_cached(AFTER)
            .map_err(|error| store_error(&error))?;
        let limit = i64::try_from(count_max).unwrap_or(i64::MAX);
        let mut rows = statement
            .query((after, limit))
            .map_err(|error| store_error(&error))?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(|error| store_error(&error))? {
            keys.extend(self.key(row, 0)?);
            count += 1;
            if count == count_max {
                return row.get(0).map(Some).map_err(|error| store_error(&error));
            }
        }
        Ok(None)
    }

    /// The newest rows, and the highest number.
    fn tail(&self, connection: &Connection) -> Result<(Vec<(i64, Key)>, i64), StoreError> {
        let mut statement = connection
            .prepare_cached(LAST)
            .map_err(|error| store_error(&error))?;
        let limit = i64::try_from(TAIL_COUNT).unwrap_or(i64::MAX);
        let mut rows = statement
            .query([limit])
            .map_err(|error| store_error(&error))?;
        let mut tail = Vec::new();
        let mut last_id = 0;
        while let Some(row) = rows.next().map_err(|error| store_error(&error))? {
            let id = row.get(0).map_err(|error| store_error(&error))?;
            last_id = last_id.max(id);
            tail.extend(self.key(row, 1)?.map(|key| (id, key)));
        }
        tail.reverse();
        Ok((tail, last_id))
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

impl Base {
    fn new(origin: Origin, keys: Vec<Key>, tail: Vec<(i64, Key)>, last_id: i64) -> Self {
        Self {
            origin,
            loaded_count: keys.len(),
            set: Set::build(keys),
            last_id,
            tail,
        }
    }

    /// Adds what is new, in the transaction that `connection` is in. After [`Advance::Foreign`] the
    /// base is of no more use.
    pub(super) fn advance(
        &mut self,
        reader: &Reader,
        origin: Origin,
        connection: &Connection,
    ) -> Result<Advance, StoreError> {
        if origin != self.origin {
            return Ok(Advance::Foreign);
        }
        let first_id = self.tail.first().map_or(self.last_id + 1, |&(id, _)| id);
        let mut statement = connection
            .prepare_cached(SINCE)
            .map_err(|error| store_error(&error))?;
        let mut rows = statement
            .query([first_id])
            .map_err(|error| store_error(&error))?;
        let (mut known_count, mut new_count) = (0, 0);
        let mut last_id = self.last_id;
        let mut entries = Vec::new();
        while new_count < SMALL_COUNT
            && let Some(row) = rows.next().map_err(|error| store_error(&error))?
        {
            let id = row.get(0).map_err(|error| store_error(&error))?;
            let entry = reader.key(row, 1)?.map(|key| (id, key));
            if id > self.last_id {
                new_count += 1;
                last_id = id;
            } else if let Some(entry) = entry {
                if !self.tail.contains(&entry) {
                    return Ok(Advance::Foreign);
                }
                known_count += 1;
            }
            entries.extend(entry);
        }
        if known_count < KNOWN_COUNT_MIN {
            return Ok(Advance::Foreign);
        }
        let new = entries.iter().skip(known_count).map(|&(_, key)| key);
        let set = self.set.with(new.collect());
        self.tail = if entries.len() >= TAIL_COUNT {
            entries.split_off(entries.len() - TAIL_COUNT)
        } else {
            // Some of the newest rows were deleted: older ones take their place.
            reader.tail(connection)?.0
        };
        self.last_id = last_id;
        self.set = set;
        Ok(if new_count < SMALL_COUNT {
            Advance::Done
        } else {
            Advance::More
        })
    }

    /// Whether so much of the set may have been deleted that reading everything anew is worth it.
    pub(super) fn is_worn(&self) -> bool {
        self.set.key_count() > 2 * self.loaded_count + SMALL_COUNT
    }
}

/// Before all paths.
fn first() -> Value {
    Value::Text(String::new())
}

/// Asks again while another process holds the database. SQLite itself waits in between.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 0..BUSY_COUNT_MAX {
        match ask() {
            Err(StoreError::Busy) => {}
            other => return other,
        }
    }
    ask()
}
