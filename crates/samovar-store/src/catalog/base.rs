//! The loaded set of hash parts, and its incremental update from new rows.

use std::sync::Arc;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row};
use samovar_nix::{HashPart, StoreDir};

use super::seed::Key;
use super::set::Set;
use crate::database::{Database, Session};
use crate::error::StoreError;

/// Number of newest rows whose ids and paths are remembered. The next update re-reads these rows to
/// check that it reads the same database.
const TAIL_COUNT: usize = 128;

/// Minimum number of remembered rows that still exist if the database is the same one. A restored
/// database assigns new row ids, so a few of its rows may match by chance.
const KNOWN_COUNT_MIN: usize = 32;

/// Maximum number of rows read while a caller waits: they take milliseconds.
const SMALL_COUNT: usize = 4096;

/// Number of rows per transaction of a full load. In rollback mode such a transaction blocks
/// writers for 50 ms.
const CHUNK_COUNT: usize = 50_000;

/// Number of consecutive busy timeouts after which a full load fails: ten seconds.
const BUSY_COUNT_MAX: u32 = 20;

/// Selects the next paths in order. SQLite answers it from the index on `path` alone, without
/// reading rows.
const AFTER: &str = "select path from ValidPaths where path > ?1 order by path limit ?2";

/// Selects a row if there are more rows than this. SQLite counts the entries of an index, which is
/// far cheaper than reading the paths.
const MORE_THAN: &str = "select 1 from ValidPaths limit 1 offset ?1";

const LAST: &str = "select id, path from ValidPaths order by id desc limit ?1";

const SINCE: &str = "select id, path from ValidPaths where id >= ?1 order by id";

/// A superset of the paths in the database as of the last update: deleted paths may remain.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) set: Set,
    history: History,
    /// Number of paths at the last full load.
    loaded_count: usize,
    /// Highest row id read so far.
    last_id: i64,
    /// The newest rows at the last update, by ascending id.
    tail: Vec<(i64, Key)>,
}

/// Identifies a database file between two overwrites: while the value stays equal, only commits
/// have changed the database. A restored backup gets another value, because its row ids repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct History {
    number: u64,
    /// SQLite's schema version. SQLite's backup API increments it when it overwrites the database.
    schema_version: i64,
}

impl History {
    /// Returns the history of the database state that `connection` reads next.
    pub(super) fn of(
        database: &Database,
        session: &Session,
        connection: &Connection,
    ) -> Result<Self, StoreError> {
        // Run this statement first: in a transaction it takes SQLite's shared lock, which blocks
        // commits in rollback mode.
        let schema_version = connection.query_row("pragma schema_version", [], |row| row.get(0))?;
        Ok(Self {
            number: database.history(session)?,
            schema_version,
        })
    }
}

/// Result of [`Base::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// The set holds all paths of the database.
    Done,
    /// A part of the new rows was added; more remain.
    More,
    /// The file is another database: a full load is needed.
    Foreign,
}

/// Reads hash parts from rows.
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

    /// Reads all hash parts in the current transaction. Returns `None` if there are more than a
    /// caller should wait for.
    pub(super) fn read_small(
        &self,
        history: History,
        connection: &Connection,
    ) -> Result<Option<Base>, StoreError> {
        let count_max = i64::try_from(SMALL_COUNT - 1).unwrap_or(i64::MAX);
        if connection.prepare_cached(MORE_THAN)?.exists([count_max])? {
            return Ok(None);
        }
        let (tail, last_id) = self.tail(connection)?;
        let mut keys = Vec::new();
        self.read_after(connection, &first(), usize::MAX, &mut keys)?;
        Ok(Some(Base::new(history, keys, tail, last_id)))
    }

    /// Reads all hash parts, with one transaction per chunk. Rows added during the load have
    /// ids above `last_id`; the next [`Base::advance`] reads them.
    ///
    /// Returns `None` if cancelled, or if the database was replaced during the load.
    pub(super) fn read_all(
        &self,
        database: &Database,
        session: &Arc<Session>,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<Base>, StoreError> {
        let connection = session.connection()?;
        let history = retry_busy(|| History::of(database, session, &connection))?;
        // Read the newest rows before the paths, so that rows added later count as new.
        let (tail, last_id) = retry_busy(|| self.tail(&connection))?;
        let mut keys = Vec::new();
        let mut place = Some(first());
        while let Some(after) = place {
            // Stop reading a replaced database: a connection to an overwritten file prevents
            // opening the new one.
            let now = retry_busy(|| History::of(database, session, &connection))?;
            if is_cancelled() || now != history {
                return Ok(None);
            }
            let count = keys.len();
            place = retry_busy(|| {
                keys.truncate(count);
                self.read_after(&connection, &after, CHUNK_COUNT, &mut keys)
            })?;
        }
        Ok(Some(Base::new(history, keys, tail, last_id)))
    }

    /// Reads up to `count_max` paths that sort after `after`. Returns the last path read if more
    /// may follow; `None` if all paths were read.
    fn read_after(
        &self,
        connection: &Connection,
        after: &Value,
        count_max: usize,
        keys: &mut Vec<Key>,
    ) -> Result<Option<Value>, StoreError> {
        let mut statement = connection.prepare_cached(AFTER)?;
        let limit = i64::try_from(count_max).unwrap_or(i64::MAX);
        let mut rows = statement.query((after, limit))?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            keys.extend(self.key(row, 0)?);
            count += 1;
            if count == count_max {
                return Ok(Some(row.get(0)?));
            }
        }
        Ok(None)
    }

    /// Reads the newest rows and the highest row id.
    fn tail(&self, connection: &Connection) -> Result<(Vec<(i64, Key)>, i64), StoreError> {
        let mut statement = connection.prepare_cached(LAST)?;
        let limit = i64::try_from(TAIL_COUNT).unwrap_or(i64::MAX);
        let mut rows = statement.query([limit])?;
        let mut tail = Vec::new();
        let mut last_id = 0;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            last_id = last_id.max(id);
            tail.extend(self.key(row, 1)?.map(|key| (id, key)));
        }
        tail.reverse();
        Ok((tail, last_id))
    }

    /// Reads the hash part of a row's path. Returns `None` for an ill-formed path: no request can
    /// name it, and it must not prevent other paths from being found.
    fn key(&self, row: &Row<'_>, column: usize) -> Result<Option<Key>, StoreError> {
        let ValueRef::Text(path) = row.get_ref(column)? else {
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
    fn new(history: History, keys: Vec<Key>, tail: Vec<(i64, Key)>, last_id: i64) -> Self {
        Self {
            history,
            loaded_count: keys.len(),
            set: Set::build(keys),
            last_id,
            tail,
        }
    }

    /// Adds new rows, in the current transaction. The base is invalid after [`Advance::Foreign`].
    pub(super) fn advance(
        &mut self,
        reader: &Reader,
        history: History,
        connection: &Connection,
    ) -> Result<Advance, StoreError> {
        if history != self.history {
            return Ok(Advance::Foreign);
        }
        let first_id = self.tail.first().map_or(self.last_id + 1, |&(id, _)| id);
        let mut statement = connection.prepare_cached(SINCE)?;
        let mut rows = statement.query([first_id])?;
        let (mut known_count, mut new_count) = (0, 0);
        let mut last_id = self.last_id;
        let mut entries = Vec::new();
        while new_count < SMALL_COUNT
            && let Some(row) = rows.next()?
        {
            let id = row.get(0)?;
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
            // Some of the newest rows were deleted: refill the tail with older ones.
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

    /// Returns whether deleted paths may be the majority of the set, so that a full load saves
    /// memory.
    pub(super) fn is_mostly_deleted(&self) -> bool {
        self.set.key_count() > 2 * self.loaded_count + SMALL_COUNT
    }
}

/// Returns the value from which a full load starts: the empty text, which sorts before all paths.
fn first() -> Value {
    Value::Text(String::new())
}

/// Calls `run` again while another process holds the lock on the database. SQLite waits for that
/// lock in each attempt.
fn retry_busy<T>(mut run: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 0..BUSY_COUNT_MAX {
        match run() {
            Err(StoreError::Busy) => {}
            other => return other,
        }
    }
    run()
}
